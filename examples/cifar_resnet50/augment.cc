#include "augment.h"

#include "cifar.h"

namespace cadre::cifar {
namespace {

// The values that most programs for CIFAR-10 have. The deviations are means of each image's own.
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
