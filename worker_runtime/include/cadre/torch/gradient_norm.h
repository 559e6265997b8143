// The norm of gradients that are spread over the ranks, and clipping by it.
#ifndef CADRE_TORCH_GRADIENT_NORM_H_
#define CADRE_TORCH_GRADIENT_NORM_H_

#include <chrono>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "torch/types.h"

namespace cadre::nn {

// INVALID_ARGUMENT: `max_norm` is below 0, or `norm_type` is not more than 0.
Status CheckNorm(double max_norm, double norm_type);

// Collective: of all ranks' gradients together, each given by one rank. Infinity is the largest
// magnitude. Waits for devices, once for each.
Result<double> NormOverRanks(Communicator& communicator, const std::vector<torch::Tensor>& mine,
                             double norm_type, std::chrono::nanoseconds timeout);

// Scales the gradients so that their norm, which is `total`, is at most `max_norm`. As
// torch::nn::utils::clip_grad_norm_, a norm that is not finite scales by what it makes of that.
void ClipToNorm(const std::vector<torch::Tensor>& gradients, double total, double max_norm);

}  // namespace cadre::nn

#endif  // CADRE_TORCH_GRADIENT_NORM_H_
