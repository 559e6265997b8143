// Lets operators compute in 16 bits where that is safe: PyTorch's torch.autocast for C++, where
// libtorch has only its parts, under names that differ between releases.
//
//   torch::Tensor loss;
//   {
//     const cadre::nn::Autocast in_half(torch::kCUDA, torch::kFloat16);
//     loss = torch::nll_loss(model->forward(images), labels);
//   }
//   scaler->Scale(loss).backward();   // sharded_grad_scaler.h; bfloat16 needs none
#ifndef CADRE_TORCH_AUTOCAST_H_
#define CADRE_TORCH_AUTOCAST_H_

#include "torch/types.h"

namespace cadre::nn {

// What a thread's operators on one kind of device do. libtorch keeps this state per thread.
struct AutocastState {
  bool enabled = false;
  torch::ScalarType type = torch::kFloat16;
  // Whether to cache the parameters' 16-bit copies, so that each is made once per outermost
  // Autocast.
  bool cache = true;
};

// Whether this libtorch has autocast for that kind of device: before 2.4 only for the host and
// CUDA.
bool HasAutocast(torch::DeviceType device);
// The calling thread's state; not enabled if this libtorch has no autocast for the device.
AutocastState CurrentAutocast(torch::DeviceType device);

// While it lives, the calling thread's operators on that kind of device compute in `type`, float16
// or bfloat16, where libtorch considers that safe; with `enabled` false they do not, even inside an
// outer Autocast that is enabled. Use it for the forward pass and the loss; the backward pass,
// outside of it, uses the types that these used. May be nested. The parameters' 16-bit copies are
// dropped at the end of the outermost one, so no optimizer may step inside.
//
// Throws c10::Error if HasAutocast() is false, or for another type. On the host, libtorch 1.13
// supports only bfloat16.
//
// In FullySharded's units the 16-bit copies of a unit's parameters stay allocated from its forward
// to its backward pass; FullyShardedOptions::parameter_type avoids them, and so does Checkpointed.
class Autocast {
 public:
  Autocast(torch::DeviceType device, torch::ScalarType type, bool enabled = true);
  // Applies a state that was read before, in another place or on another thread.
  Autocast(torch::DeviceType device, const AutocastState& state);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const torch::DeviceType device_;
  const AutocastState before_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_AUTOCAST_H_
