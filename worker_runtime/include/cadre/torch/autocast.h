// Operators compute in 16 bits where that is safe: torch.autocast of PyTorch's Python, which C++
// has the parts of, under names that differ between releases.
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

// What a thread's operators on one kind of device do. libtorch keeps it for each thread.
struct AutocastState {
  bool enabled = false;
  torch::ScalarType type = torch::kFloat16;
  // Of the parameters' 16-bit copies, each of which is made once in the outermost Autocast.
  bool cache = true;
};

// Whether this libtorch has autocast for that kind of device: before 2.4 for the host and CUDA
// alone.
bool HasAutocast(torch::DeviceType device);
// Of the calling thread. Where there is none: not enabled.
AutocastState CurrentAutocast(torch::DeviceType device);

// While it lives, the calling thread's operators on that kind of device compute in `type`, float16
// or bfloat16, where libtorch deems that safe; with `enabled` false they do not, inside an outer
// one that is. For the forward pass and the loss; the backward pass, outside of it, uses the types
// that these used. May be nested. The parameters' copies are forgotten at the end of the outermost,
// so no optimizer may step inside.
//
// Throws c10::Error: HasAutocast() is false, or the type is another. On the host libtorch 1.13 has
// bfloat16 alone.
//
// In FullySharded's units the 16-bit copies of a unit's parameters stay from its forward to its
// backward pass: FullyShardedOptions::parameter_type does without them, and so does Checkpointed.
class Autocast {
 public:
  Autocast(torch::DeviceType device, torch::ScalarType type, bool enabled = true);
  // As a state that was read before, in another place or on another thread.
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
