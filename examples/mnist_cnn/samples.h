// MNIST's images as input tensors for the network.
#ifndef CADRE_EXAMPLES_MNIST_CNN_SAMPLES_H_
#define CADRE_EXAMPLES_MNIST_CNN_SAMPLES_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "cadre/result.h"
#include "cadre/worker.h"
#include "torch/types.h"

namespace cadre::mnist {

// Returns where the images are: `directory` or, if it is empty, the directory of the digits that
// this node draws. Collective among the workers that start together.
Result<std::string> FindSamples(Worker& worker, const std::string& directory,
                                std::chrono::nanoseconds timeout);

struct Samples {
  torch::Tensor images;  // [n, 1, 28, 28], normalized
  torch::Tensor labels;  // [n]

  int64_t size() const { return labels.size(0); }
};

// Reads the files of `directory` whose names begin with `prefix` ("train", "t10k"), at most `limit`
// samples (0: all), onto `device`. Fails as ReadImageSet() does, and with INVALID_ARGUMENT if the
// images are not 28 by 28.
Result<Samples> LoadSamples(const std::string& directory, const std::string& prefix, int limit,
                            const torch::Device& device);

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_SAMPLES_H_
