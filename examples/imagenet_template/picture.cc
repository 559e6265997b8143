#include "picture.h"

#include <algorithm>
#include <cmath>
#include <fstream>

namespace cadre::imagenet {
namespace {

constexpr float kMean[kChannels] = {0.485f, 0.456f, 0.406f};
constexpr float kDeviation[kChannels] = {0.229f, 0.224f, 0.225f};
constexpr float kLeastArea = 0.08f;
constexpr float kMostRatio = 4.0f / 3;
constexpr float kCenter = 224.0f / 256;
// torchvision makes as many tries; then it takes the middle of the picture.
constexpr int kBoxTries = 10;

// Two neighbouring pixels and the weight of the second one.
struct Between {
  int first, second;
  float weight;
};

Between Neighbours(float from, float length, int i, int side, int limit) {
  const float at = std::clamp(from + (i + 0.5f) * length / side - 0.5f, 0.0f, limit - 1.0f);
  const int first = static_cast<int>(at);
  return {first, std::min(first + 1, limit - 1), at - first};
}

float Mix(float a, float b, float weight) { return a + (b - a) * weight; }

}  // namespace

Result<Picture> ReadPpm(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFoundError(path + ": cannot be read");
  std::string magic;
  Picture picture;
  int levels = 0;
  file >> magic >> picture.width >> picture.height >> levels;
  file.get();
  if (!file || magic != "P6" || levels != 255 || picture.width < 1 || picture.height < 1 ||
      picture.width > kMaxPictureSide || picture.height > kMaxPictureSide) {
    return InvalidArgumentError(path +
                                ": not a binary PPM picture with 255 levels and sides of at most " +
                                std::to_string(kMaxPictureSide));
  }
  picture.points.resize(size_t{kChannels} * picture.width * picture.height);
  if (!file.read(reinterpret_cast<char*>(picture.points.data()), picture.points.size())) {
    return InvalidArgumentError(path + ": shorter than " + std::to_string(picture.width) + " by " +
                                std::to_string(picture.height) + " points");
  }
  return picture;
}

Status WritePpm(const Picture& picture, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  file << "P6\n" << picture.width << " " << picture.height << "\n255\n";
  file.write(reinterpret_cast<const char*>(picture.points.data()), picture.points.size());
  file.close();
  return file ? OkStatus() : UnavailableError(path + ": cannot be written");
}

Box RandomBox(const Picture& picture, std::mt19937_64& random) {
  const auto uniform = [&](float from, float to) {
    return std::uniform_real_distribution<float>(from, to)(random);
  };
  const float whole = static_cast<float>(picture.width) * picture.height;
  for (int i = 0; i < kBoxTries; ++i) {
    const float area = whole * uniform(kLeastArea, 1);
    const float ratio = std::exp(uniform(-std::log(kMostRatio), std::log(kMostRatio)));
    const float width = std::sqrt(area * ratio);
    const float height = std::sqrt(area / ratio);
    if (width > picture.width || height > picture.height) continue;
    return {uniform(0, picture.width - width), uniform(0, picture.height - height), width, height};
  }
  return CenterBox(picture);
}

Box CenterBox(const Picture& picture) {
  const float side = kCenter * std::min(picture.width, picture.height);
  return {(picture.width - side) / 2, (picture.height - side) / 2, side, side};
}

void Resample(const Picture& picture, const Box& box, bool flip, int side, float* out) {
  const auto value = [&](int x, int y, int channel) {
    return picture.points[(size_t{1} * y * picture.width + x) * kChannels + channel] / 255.0f;
  };
  for (int channel = 0; channel < kChannels; ++channel) {
    for (int row = 0; row < side; ++row) {
      const Between y = Neighbours(box.top, box.height, row, side, picture.height);
      for (int column = 0; column < side; ++column) {
        const int i = flip ? side - 1 - column : column;
        const Between x = Neighbours(box.left, box.width, i, side, picture.width);
        const float mixed = Mix(
            Mix(value(x.first, y.first, channel), value(x.second, y.first, channel), x.weight),
            Mix(value(x.first, y.second, channel), value(x.second, y.second, channel), x.weight),
            y.weight);
        *out++ = (mixed - kMean[channel]) / kDeviation[channel];
      }
    }
  }
}

}  // namespace cadre::imagenet
