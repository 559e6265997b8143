// Drawn digits, for machines without the real data set.
#ifndef CADRE_EXAMPLES_MNIST_CNN_DIGITS_H_
#define CADRE_EXAMPLES_MNIST_CNN_DIGITS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "cadre/result.h"
#include "idx.h"

namespace cadre::mnist {

// Draws images of 28 by 28 pixels with random position, size, slant, thickness and noise. The same
// seed gives the same images.
ImageSet DrawDigits(size_t count, uint64_t seed);

// Returns a directory with 6,000 training and 1,000 test images as IDX files, under the user's
// cache directory; it is created if it does not exist. Several processes may do so at once: the
// directory appears complete or not at all.
Result<std::string> DrawnDigitsDirectory();

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_DIGITS_H_
