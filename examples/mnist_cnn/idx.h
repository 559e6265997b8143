// Images with labels, in the format of the MNIST files (IDX), plain or compressed with gzip.
#ifndef CADRE_EXAMPLES_MNIST_CNN_IDX_H_
#define CADRE_EXAMPLES_MNIST_CNN_IDX_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cadre/result.h"
#include "cadre/status.h"

namespace cadre::mnist {

struct ImageSet {
  size_t rows = 0;
  size_t columns = 0;
  // size() * rows * columns bytes, image after image; 0 is background.
  std::vector<uint8_t> pixels;
  std::vector<uint8_t> labels;

  size_t size() const { return labels.size(); }
};

// Reads <directory>/<prefix>-images-idx3-ubyte and <prefix>-labels-idx1-ubyte, each also with
// ".gz". `prefix` is "train" or "t10k". A limit other than 0 keeps only the first images.
Result<ImageSet> ReadImageSet(const std::string& directory, const std::string& prefix,
                              size_t limit);

// Writes the two plain files.
Status WriteImageSet(const ImageSet& set, const std::string& directory, const std::string& prefix);

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_IDX_H_
