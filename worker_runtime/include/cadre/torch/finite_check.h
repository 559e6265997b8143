// Whether gradients are finite, found out where they lie.
#ifndef CADRE_TORCH_FINITE_CHECK_H_
#define CADRE_TORCH_FINITE_CHECK_H_

#include <cstdint>
#include <optional>

#include "cadre/torch/device_stream.h"
#include "torch/types.h"

namespace cadre::nn {

// On a device it works on a stream of its own, and the host comes to know later. One thread.
class FiniteCheck {
 public:
  // Of tensors of the kind of `like`. With `sticky` what was found once stays, so that it may be
  // asked for at any later time. The stream must outlive it.
  FiniteCheck(const DeviceStream* stream, const torch::Tensor& like, bool sticky);

  // At a tensor of one dimension with at least one element.
  void Look(const torch::Tensor& flat);
  // When the last look is over.
  const DevicePoint& looked() const { return looked_; }
  // The element that was found so far.
  std::optional<int64_t> found() const;

 private:
  const DeviceStream& stream_;
  const bool sticky_;
  // One more than the element; 0: none.
  torch::Tensor found_;
  torch::Tensor host_;
  DevicePoint looked_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_FINITE_CHECK_H_
