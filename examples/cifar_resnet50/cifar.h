// CIFAR-10 in its binary format: records of one label and 3 x 32 x 32 pixels. Thread safe.
#ifndef CADRE_EXAMPLES_CIFAR_RESNET50_CIFAR_H_
#define CADRE_EXAMPLES_CIFAR_RESNET50_CIFAR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre::cifar {

constexpr int kSide = 32;
constexpr int kChannels = 3;
constexpr int kClasses = 10;
constexpr size_t kPixels = size_t{kChannels} * kSide * kSide;

struct Images {
  std::vector<uint8_t> labels;
  // Image by image: all red values row by row, then green, then blue.
  std::vector<uint8_t> pixels;

  size_t size() const { return labels.size(); }
  const uint8_t* image(size_t i) const { return pixels.data() + i * kPixels; }
};

// Reads `paths` one after the other, at most `limit` images; 0 means all. Fails with NOT_FOUND, or
// with INVALID_ARGUMENT, which names the file that is not in this format and why.
Result<Images> ReadImages(const std::vector<std::string>& paths, size_t limit);

Status WriteImages(const Images& images, const std::string& path);

// Reads the files data_batch_1.bin to data_batch_5.bin of CIFAR-10 in `directory`, as far as they
// exist; at least one must.
Result<Images> ReadTrainingImages(const std::string& directory, size_t limit);
// Reads test_batch.bin.
Result<Images> ReadTestImages(const std::string& directory, size_t limit);

// Draws images that a network can learn: each class has a color and a direction of its stripes.
Images DrawImages(size_t count, uint32_t seed);

}  // namespace cadre::cifar

#endif  // CADRE_EXAMPLES_CIFAR_RESNET50_CIFAR_H_
