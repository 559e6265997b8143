// What the model computes in: float32, or 16 bits where that is safe. Includes libtorch.
#ifndef CADRE_EXAMPLES_SHARDED_TRANSFORMER_PRECISION_H_
#define CADRE_EXAMPLES_SHARDED_TRANSFORMER_PRECISION_H_

#include <functional>
#include <string>

#include "cadre/result.h"
#include "cadre/status.h"
#include "torch/types.h"

namespace cadre::transformer {

// INVALID_ARGUMENT: it is none of float32, bfloat16 and float16.
Result<torch::ScalarType> TypeNamed(const std::string& precision);

// What `forward` gives, in float32, so that a loss can be scaled; on the way, operators on the
// device compute in `type` where that is safe.
torch::Tensor ForwardIn(torch::ScalarType type, const torch::Device& device,
                        const std::function<torch::Tensor()>& forward);

// FAILED_PRECONDITION: this libtorch has not all of the model's operators in `type` on the device.
// A pass forward and back of a very small model finds that out.
Status CheckTrains(const torch::Device& device, torch::ScalarType type);

}  // namespace cadre::transformer

#endif  // CADRE_EXAMPLES_SHARDED_TRANSFORMER_PRECISION_H_
