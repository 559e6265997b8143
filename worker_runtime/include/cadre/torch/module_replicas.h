// Copies of a module on other devices, whose gradients are the module's own.
#ifndef CADRE_TORCH_MODULE_REPLICAS_H_
#define CADRE_TORCH_MODULE_REPLICAS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "torch/nn/module.h"
#include "torch/types.h"

namespace cadre::nn::internal {

using Replicas = std::vector<std::shared_ptr<torch::nn::Module>>;

// The module, which is on the first device, and its clone() on each of the others, `count` in all.
// Throws c10::Error: it cannot be cloned, or its clone has other parameters.
Replicas Replicate(const std::shared_ptr<torch::nn::Module>& module,
                   const std::vector<torch::Device>& devices, size_t count);

}  // namespace cadre::nn::internal

#endif  // CADRE_TORCH_MODULE_REPLICAS_H_
