#include "cifar.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "augment.h"
#include "cadre/status_macros.h"

namespace cadre::cifar {
namespace {

constexpr size_t kRecordBytes = 1 + kPixels;
constexpr int kTrainingFiles = 5;

Status Append(const std::string& path, size_t limit, Images& images) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) {
    return NotFoundError(
        path + ": cannot be read; expected a file of CIFAR-10's binary version (cifar-10-binary)");
  }
  if (bytes % kRecordBytes != 0) {
    return InvalidArgumentError(path + ": " + std::to_string(bytes) +
                                " bytes; expected a multiple of " + std::to_string(kRecordBytes) +
                                " (a label, then 3 x 32 x 32 pixels)");
  }
  for (uintmax_t i = 0; i < bytes / kRecordBytes; ++i) {
    if (limit != 0 && images.size() == limit) break;
    char record[kRecordBytes];
    if (!file.read(record, kRecordBytes)) {
      return InvalidArgumentError(path + ": ends within record " + std::to_string(i));
    }
    const auto label = static_cast<uint8_t>(record[0]);
    if (label >= kClasses) {
      return InvalidArgumentError(path + ": record " + std::to_string(i) + " has label " +
                                  std::to_string(label) + "; expected 0 to 9");
    }
    images.labels.push_back(label);
    images.pixels.insert(images.pixels.end(), record + 1, record + kRecordBytes);
  }
  return OkStatus();
}

}  // namespace

Result<Images> ReadImages(const std::vector<std::string>& paths, size_t limit) {
  Images images;
  for (const std::string& path : paths) CADRE_RETURN_IF_ERROR(Append(path, limit, images));
  return images;
}

Status WriteImages(const Images& images, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  for (size_t i = 0; i < images.size(); ++i) {
    file.put(static_cast<char>(images.labels[i]));
    file.write(reinterpret_cast<const char*>(images.image(i)), kPixels);
  }
  file.close();
  return file ? OkStatus() : UnavailableError(path + ": cannot be written");
}

Result<Images> ReadTrainingImages(const std::string& directory, size_t limit) {
  std::vector<std::string> paths;
  for (int i = 1; i <= kTrainingFiles; ++i) {
    const std::string path = directory + "/data_batch_" + std::to_string(i) + ".bin";
    // The first file must exist: reading it reports what is missing.
    if (i == 1 || std::filesystem::exists(path)) paths.push_back(path);
  }
  return ReadImages(paths, limit);
}

Result<Images> ReadTestImages(const std::string& directory, size_t limit) {
  return ReadImages({directory + "/test_batch.bin"}, limit);
}

Images DrawImages(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Images images;
  for (size_t i = 0; i < count; ++i) {
    const auto label = static_cast<uint8_t>(random() % kClasses);
    const float angle = static_cast<float>(M_PI) * label / kClasses;
    const float shift = static_cast<float>(random() % 100) / 10;
    images.labels.push_back(label);
    for (int channel = 0; channel < kChannels; ++channel) {
      const int base = 64 + (label * (channel + 3) * 29) % 128;
      for (int y = 0; y < kSide; ++y) {
        for (int x = 0; x < kSide; ++x) {
          const float along = x * std::cos(angle) + y * std::sin(angle);
          const int noise = static_cast<int>(random() % 21) - 10;
          const int value = base + noise + static_cast<int>(40 * std::sin(along + shift));
          images.pixels.push_back(static_cast<uint8_t>(std::clamp(value, 0, 255)));
        }
      }
    }
  }
  return images;
}

namespace {

// The values that most programs for CIFAR-10 use. The deviations are means over the images' own.
constexpr float kMean[kChannels] = {0.4914f, 0.4822f, 0.4465f};
constexpr float kDeviation[kChannels] = {0.2023f, 0.1994f, 0.2010f};

}  // namespace

Augmentation DrawAugmentation(std::mt19937_64& random) {
  Augmentation result;
  result.left = static_cast<int>(random() % (2 * kPadding + 1));
  result.top = static_cast<int>(random() % (2 * kPadding + 1));
  result.flip = random() % 2 == 1;
  return result;
}

void Normalize(const uint8_t* image, const Augmentation& augmentation, float* out) {
  for (int channel = 0; channel < kChannels; ++channel) {
    const uint8_t* const plane = image + channel * kSide * kSide;
    for (int y = 0; y < kSide; ++y) {
      const int from_y = y + augmentation.top - kPadding;
      for (int x = 0; x < kSide; ++x) {
        const int in_part = augmentation.flip ? kSide - 1 - x : x;
        const int from_x = in_part + augmentation.left - kPadding;
        const bool inside = from_x >= 0 && from_x < kSide && from_y >= 0 && from_y < kSide;
        const float value = inside ? plane[from_y * kSide + from_x] / 255.0f : 0.0f;
        *out++ = (value - kMean[channel]) / kDeviation[channel];
      }
    }
  }
}

}  // namespace cadre::cifar
