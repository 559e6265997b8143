// torch::optim::Adam and AdamW whose step passes over memory once for all parameters, with the
// kernels that PyTorch's optimizers use with fused=True. libtorch's own C++ optimizers step one
// parameter after the other, with ten kernels or passes each: an Adam step of 62 million elements
// on a host takes five times as long, and one on a GPU is bound by launches.
//
//   nn::FusedAdam adam(net->parameters(), torch::optim::AdamOptions(1e-3));
//
// Options, states and archives are those of the base classes, and interchangeable with theirs.
// Results differ only by rounding. Before libtorch 2.4, and on devices other than the host and
// CUDA's, step() is the base class's; also for gradients that the kernels do not support: sparse
// ones, for which it throws.
#ifndef CADRE_TORCH_FUSED_ADAM_H_
#define CADRE_TORCH_FUSED_ADAM_H_

#include "torch/optim/adam.h"
#include "torch/optim/adamw.h"
#include "torch/types.h"

namespace cadre::nn {

class FusedAdam : public torch::optim::Adam {
 public:
  using Adam::Adam;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

class FusedAdamW : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_FUSED_ADAM_H_
