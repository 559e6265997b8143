// MNIST's images as tensors that a network takes.
#ifndef CADRE_EXAMPLES_MNIST_CNN_SAMPLES_H_
#define CADRE_EXAMPLES_MNIST_CNN_SAMPLES_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "cadre/result.h"
#include "cadre/worker.h"
#include "torch/types.h"

namespace cadre::mnist {

// Where they lie: `directory`, or where it is empty the one of the digits that this node draws.
// Collective of those workers that start together.
Result<std::string> FindSamples(Worker& worker, const std::string& directory,
                                std::chrono::nanoseconds timeout);

struct Samples {
  torch::Tensor images;  // [n, 1, 28, 28], normalized
  torch::Tensor labels;  // [n]

  int64_t size() const { return labels.size(0); }
};

// Reads the files of `directory` whose names begin with `prefix` ("train", "t10k"); at most `limit`
// samples, or all with 0; onto `device`. Errors: those of ReadImageSet(); INVALID_ARGUMENT where
// the images are not 28 by 28.
Result<Samples> LoadSamples(const std::string& directory, const std::string& prefix, int limit,
                            const torch::Device& device);

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_SAMPLES_H_
