// VGG-16, as in torchvision. Includes libtorch.
#ifndef CADRE_EXAMPLES_IMAGENET_TEMPLATE_VGG_H_
#define CADRE_EXAMPLES_IMAGENET_TEMPLATE_VGG_H_

#include "../cifar_resnet50/image_network.h"
#include "torch/nn/init.h"
#include "torch/nn/modules/activation.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/pooling.h"

namespace cadre::imagenet {

// Parameters have torchvision's names.
struct Vgg16 : CopiedImageNetwork<Vgg16> {
  // Five poolings halve the picture.
  static constexpr int kLeastSide = 32;

  explicit Vgg16(int64_t classes) : options(classes) {
    constexpr int kPool = 0;
    torch::nn::Sequential layers;
    int64_t in = 3;
    for (const int out : {64, 64, kPool, 128, 128, kPool, 256, 256, 256, kPool, 512, 512, 512,
                          kPool, 512, 512, 512, kPool}) {
      if (out == kPool) {
        layers->push_back(torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(2).stride(2)));
        continue;
      }
      torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(in, out, 3).padding(1));
      torch::nn::init::kaiming_normal_(convolution->weight, /*a=*/0, torch::kFanOut, torch::kReLU);
      torch::nn::init::constant_(convolution->bias, 0);
      layers->push_back(convolution);
      layers->push_back(torch::nn::ReLU());
      in = out;
    }
    features = register_module("features", layers);
    const auto linear = [](int64_t from, int64_t to) {
      torch::nn::Linear layer(from, to);
      torch::nn::init::normal_(layer->weight, 0, 0.01);
      torch::nn::init::constant_(layer->bias, 0);
      return layer;
    };
    classifier = register_module(
        "classifier",
        torch::nn::Sequential(linear(512 * 7 * 7, 4096), torch::nn::ReLU(), torch::nn::Dropout(),
                              linear(4096, 4096), torch::nn::ReLU(), torch::nn::Dropout(),
                              linear(4096, classes)));
  }

  torch::Tensor forward(torch::Tensor x) override {
    x = torch::adaptive_avg_pool2d(features->forward(x), {7, 7});
    return classifier->forward(x.flatten(1));
  }

  const int64_t options;  // the number of classes
  torch::nn::Sequential features{nullptr}, classifier{nullptr};
};

}  // namespace cadre::imagenet

#endif  // CADRE_EXAMPLES_IMAGENET_TEMPLATE_VGG_H_
