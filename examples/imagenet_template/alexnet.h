// AlexNet, as in torchvision. Includes libtorch.
#ifndef CADRE_EXAMPLES_IMAGENET_TEMPLATE_ALEXNET_H_
#define CADRE_EXAMPLES_IMAGENET_TEMPLATE_ALEXNET_H_

#include "../cifar_resnet50/image_network.h"
#include "torch/nn/modules/activation.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/pooling.h"

namespace cadre::imagenet {

// Parameters have torchvision's names.
struct AlexNet : CopiedImageNetwork<AlexNet> {
  // The last pooling leaves nothing of smaller images.
  static constexpr int kLeastSide = 63;

  explicit AlexNet(int64_t classes) : options(classes) {
    using torch::nn::Conv2dOptions;
    const auto pool = [] {
      return torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(/*kernel_size=*/3).stride(2));
    };
    features = register_module(
        "features",
        torch::nn::Sequential(
            torch::nn::Conv2d(Conv2dOptions(3, 64, 11).stride(4).padding(2)), torch::nn::ReLU(),
            pool(), torch::nn::Conv2d(Conv2dOptions(64, 192, 5).padding(2)), torch::nn::ReLU(),
            pool(), torch::nn::Conv2d(Conv2dOptions(192, 384, 3).padding(1)), torch::nn::ReLU(),
            torch::nn::Conv2d(Conv2dOptions(384, 256, 3).padding(1)), torch::nn::ReLU(),
            torch::nn::Conv2d(Conv2dOptions(256, 256, 3).padding(1)), torch::nn::ReLU(), pool()));
    classifier = register_module(
        "classifier", torch::nn::Sequential(torch::nn::Dropout(),
                                            torch::nn::Linear(256 * 6 * 6, 4096), torch::nn::ReLU(),
                                            torch::nn::Dropout(), torch::nn::Linear(4096, 4096),
                                            torch::nn::ReLU(), torch::nn::Linear(4096, classes)));
  }

  torch::Tensor forward(torch::Tensor x) override {
    x = torch::adaptive_avg_pool2d(features->forward(x), {6, 6});
    return classifier->forward(x.flatten(1));
  }

  const int64_t options;  // the number of classes
  torch::nn::Sequential features{nullptr}, classifier{nullptr};
};

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_ALEXNET_H_
