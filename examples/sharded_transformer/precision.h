// The type in which the model computes: float32, or 16 bits where that is safe. Includes libtorch.
// Implemented in strategy.cc.
#ifndef CADRE_EXAMPLES_SHARDED_TRANSFORMER_PRECISION_H_
#define CADRE_EXAMPLES_SHARDED_TRANSFORMER_PRECISION_H_

#include <functional>
#include <string>

#include "cadre/result.h"
#include "cadre/status.h"
#include "torch/types.h"

namespace cadre::transformer {

// Fails with INVALID_ARGUMENT for names other than float32, bfloat16 and float16.
Result<torch::ScalarType> TypeNamed(const std::string& precision);

// Returns the result of `forward` in float32, so that a loss can be scaled; inside `forward`,
// operators on the device compute in `type` where that is safe.
torch::Tensor ForwardIn(torch::ScalarType type, const torch::Device& device,
                        const std::function<torch::Tensor()>& forward);

// Fails with FAILED_PRECONDITION if this libtorch lacks some of the model's operators in `type` on
// the device. It runs a forward and a backward pass of a very small model to find out.
Status CheckTrains(const torch::Device& device, torch::ScalarType type);

}  // namespace cadre::transformer

#endif  // CADRE_EXAMPLES_SHARDED_TRANSFORMER_PRECISION_H_
