// Prepares images for a network: cropped, flipped, normalized floats. Pure; thread safe.
// Implemented in cifar.cc.
#ifndef CADRE_EXAMPLES_CIFAR_RESNET50_AUGMENT_H_
#define CADRE_EXAMPLES_CIFAR_RESNET50_AUGMENT_H_

#include <cstdint>
#include <random>

namespace cadre::cifar {

// The width of the black border; a random part of the image's own size is then cut out.
constexpr int kPadding = 4;

// A change of one image. The default leaves the image as it is.
struct Augmentation {
  // Where the part begins in the padded image, 0 to 2 * kPadding.
  int left = kPadding;
  int top = kPadding;
  bool flip = false;
};

// Draws every part with equal probability, and mirrors every second one.
Augmentation DrawAugmentation(std::mt19937_64& random);

// Reads kPixels values and writes as many in the same order; the mean of each channel over CIFAR-10
// is subtracted, and the result is divided by its standard deviation.
void Normalize(const uint8_t* image, const Augmentation& augmentation, float* out);

}  // namespace cadre::cifar

#endif  // CADRE_EXAMPLES_CIFAR_RESNET50_AUGMENT_H_
