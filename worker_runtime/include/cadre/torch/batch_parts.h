// A batch in parts, each on a device, and what comes out of them as one again. Gradients go the
// same ways back.
#ifndef CADRE_TORCH_BATCH_PARTS_H_
#define CADRE_TORCH_BATCH_PARTS_H_

#include <cstdint>
#include <vector>

#include "torch/types.h"

namespace cadre::nn::internal {

// The tensors of each part, the first device's first.
using PartTensors = std::vector<std::vector<torch::Tensor>>;

// One part at least, and no more than there are devices. As ScatterParallel::forward() has it, and
// throws.
PartTensors Scatter(const std::vector<torch::Tensor>& inputs,
                    const std::vector<torch::Device>& devices, int64_t dimension);
std::vector<torch::Tensor> Gather(const PartTensors& outputs, torch::Device device,
                                  int64_t dimension);

}  // namespace cadre::nn::internal

#endif  // CADRE_TORCH_BATCH_PARTS_H_
