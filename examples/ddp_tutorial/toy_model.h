// The tutorial's model: two linear layers. Includes libtorch.
#ifndef CADRE_EXAMPLES_DDP_TUTORIAL_TOY_MODEL_H_
#define CADRE_EXAMPLES_DDP_TUTORIAL_TOY_MODEL_H_

#include "torch/nn/module.h"
#include "torch/nn/modules/linear.h"
#include "torch/types.h"

namespace cadre {

struct ToyModel : torch::nn::Module {
  ToyModel()
      : net1(register_module("net1", torch::nn::Linear(10, 10))),
        net2(register_module("net2", torch::nn::Linear(10, 5))) {}

  // Maps [n, 10] to [n, 5].
  torch::Tensor forward(torch::Tensor x) { return net2(torch::relu(net1(x))); }

  torch::nn::Linear net1, net2;
};

}  // namespace cadre

#endif  // CADRE_EXAMPLES_DDP_TUTORIAL_TOY_MODEL_H_
