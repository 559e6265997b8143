// Images as a network wants them: cropped, flipped, normalized floats. Pure; thread safe.
#ifndef CADRE_EXAMPLES_CIFAR_RESNET50_AUGMENT_H_
#define CADRE_EXAMPLES_CIFAR_RESNET50_AUGMENT_H_

#include <cstdint>
#include <random>

namespace cadre::cifar {

// Of black pixels around the image, before a random part of the image's size is cut out.
constexpr int kPadding = 4;

// A change of one image. The default leaves it as it is.
struct Augmentation {
  // Where the part begins in the padded image, 0 to 2 * kPadding.
  int left = kPadding;
  int top = kPadding;
  bool flip = false;
};

// Every part equally likely, every second one mirrored.
Augmentation DrawAugmentation(std::mt19937_64& random);

// kPixels values in, as many out, in the same order; each channel less its mean over CIFAR-10,
// divided by its deviation.
void Normalize(const uint8_t* image, const Augmentation& augmentation, float* out);

}  // namespace cadre::cifar

#endif  // CADRE_EXAMPLES_CIFAR_RESNET50_AUGMENT_H_
