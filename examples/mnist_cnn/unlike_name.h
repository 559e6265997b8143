// Unique names for files that several processes create in one directory.
#ifndef CADRE_EXAMPLES_MNIST_CNN_UNLIKE_NAME_H_
#define CADRE_EXAMPLES_MNIST_CNN_UNLIKE_NAME_H_

#include <unistd.h>

#include <cstdio>
#include <random>
#include <string>

namespace cadre::mnist {

// Returns "<pid>-<16 hexadecimal digits>". The pid tells people whose file it is. The pid alone is
// not unique: processes of several containers or machines that share the directory may have the
// same one.
inline std::string UnlikeName() {
  std::random_device random;
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%08x%08x", random(), random());
  return std::to_string(getpid()) + "-" + digits;
}

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_UNLIKE_NAME_H_
