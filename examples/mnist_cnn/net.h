// The network: two convolutions with pooling, two linear layers. Includes libtorch.
#ifndef CADRE_EXAMPLES_MNIST_CNN_NET_H_
#define CADRE_EXAMPLES_MNIST_CNN_NET_H_

#include "torch/nn/module.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/linear.h"
#include "torch/types.h"

namespace cadre::mnist {

struct Net : torch::nn::Module {
  Net()
      : conv1(register_module(
            "conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 20, /*kernel_size=*/5)))),
        conv2(register_module(
            "conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(20, 50, /*kernel_size=*/5)))),
        fc1(register_module("fc1", torch::nn::Linear(4 * 4 * 50, 500))),
        fc2(register_module("fc2", torch::nn::Linear(500, 10))) {}

  // Maps images [n, 1, 28, 28] to scores [n, 10].
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return fc2(torch::relu(fc1(x.flatten(1))));
  }

  torch::nn::Conv2d conv1, conv2;
  torch::nn::Linear fc1, fc2;
};

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_NET_H_
