// What networks for pictures have in common. Includes libtorch.
#ifndef CADRE_EXAMPLES_CIFAR_RESNET50_IMAGE_NETWORK_H_
#define CADRE_EXAMPLES_CIFAR_RESNET50_IMAGE_NETWORK_H_

#include "torch/nn/module.h"
#include "torch/types.h"

namespace cadre {

struct ImageNetwork : torch::nn::Module {
  // Images [n, 3, height, width] to scores [n, classes].
  virtual torch::Tensor forward(torch::Tensor x) = 0;
};

}  // namespace cadre

#endif  // CADRE_EXAMPLES_CIFAR_RESNET50_IMAGE_NETWORK_H_
