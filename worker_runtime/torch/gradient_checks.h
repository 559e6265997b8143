// What is computed of gradients on devices: whether they are finite, and their norm over all ranks.
// Implemented in tensors.cc.
#ifndef CADRE_WORKER_RUNTIME_TORCH_GRADIENT_CHECKS_H_
#define CADRE_WORKER_RUNTIME_TORCH_GRADIENT_CHECKS_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/torch/device_stream.h"
#include "torch/types.h"

namespace cadre::nn {

// Checks in device memory whether gradients are finite. On a device it works asynchronously on a
// stream of its own. Used by one thread.
class FiniteCheck {
 public:
  // Checks tensors on the device of `like`. With `sticky` the first finding is kept, so that it may
  // be queried at any later time. The stream must outlive it.
  FiniteCheck(const DeviceStream* stream, const torch::Tensor& like, bool sticky);

  // Checks a tensor of one dimension with at least one element.
  void Check(const torch::Tensor& flat);
  // The point at which the last check is done.
  const DevicePoint& checked() const { return checked_; }
  // The index of the non-finite element found so far.
  std::optional<int64_t> found() const;

 private:
  const DeviceStream& stream_;
  const bool sticky_;
  // The index of the element plus one; 0: none.
  torch::Tensor found_;
  torch::Tensor host_;
  DevicePoint checked_;
};

// INVALID_ARGUMENT: `max_norm` is below 0, or `norm_type` is not more than 0.
Status CheckNorm(double max_norm, double norm_type);

// Collective: the norm of all ranks' gradients together, where each gradient is passed by one rank.
// Infinity is the largest magnitude. Waits for devices, once for each.
Result<double> NormOverRanks(Communicator& communicator, const std::vector<torch::Tensor>& mine,
                             double norm_type, std::chrono::nanoseconds timeout);

// Scales the gradients so that their norm, which is `total`, is at most `max_norm`. Like
// torch::nn::utils::clip_grad_norm_, it also applies the factor that results from a norm that is
// not finite.
void ClipToNorm(const std::vector<torch::Tensor>& gradients, double total, double max_norm);

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_GRADIENT_CHECKS_H_
