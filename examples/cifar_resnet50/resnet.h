// Residual networks, as in torchvision: ResNet-50, ResNet-18 and their relatives. Includes
// libtorch.
#ifndef CADRE_EXAMPLES_CIFAR_RESNET50_RESNET_H_
#define CADRE_EXAMPLES_CIFAR_RESNET50_RESNET_H_

#include <cmath>
#include <vector>

#include "image_network.h"
#include "torch/nn/init.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/pimpl.h"
#include "torch/types.h"

namespace cadre {

struct ResNetOptions {
  int64_t classes = 10;
  // The number of blocks of each stage. The default is ResNet-50; {3, 4, 23, 3} is ResNet-101.
  std::vector<int64_t> blocks = {3, 4, 6, 3};
  // The number of channels of the first stage.
  int64_t width = 64;
  // Whether blocks are bottlenecks of three convolutions, or basic ones of two: {2, 2, 2, 2} basic
  // blocks are ResNet-18.
  bool bottleneck = true;
};

inline torch::nn::Conv2d Convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

// Narrow, convolve, widen; the stride is at the 3x3 convolution, as in torchvision.
struct BottleneckImpl : torch::nn::Module {
  static constexpr int64_t kExpansion = 4;

  BottleneckImpl(int64_t in, int64_t narrow, int64_t stride)
      : conv1(register_module("conv1", Convolution(in, narrow, 1, 1))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(narrow))),
        conv2(register_module("conv2", Convolution(narrow, narrow, 3, stride))),
        bn2(register_module("bn2", torch::nn::BatchNorm2d(narrow))),
        conv3(register_module("conv3", Convolution(narrow, narrow * kExpansion, 1, 1))),
        bn3(register_module("bn3", torch::nn::BatchNorm2d(narrow * kExpansion))) {
    if (stride == 1 && in == narrow * kExpansion) return;
    downsample = register_module(
        "downsample", torch::nn::Sequential(Convolution(in, narrow * kExpansion, 1, stride),
                                            torch::nn::BatchNorm2d(narrow * kExpansion)));
  }

  torch::Tensor forward(torch::Tensor x) {
    torch::Tensor y = torch::relu(bn1(conv1(x)));
    y = torch::relu(bn2(conv2(y)));
    y = bn3(conv3(y));
    return torch::relu(y + (downsample.is_empty() ? x : downsample->forward(x)));
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
  torch::nn::Conv2d conv3;
  torch::nn::BatchNorm2d bn3;
  torch::nn::Sequential downsample{nullptr};
};
TORCH_MODULE(Bottleneck);

// Two convolutions, the first with the stride.
struct BasicBlockImpl : torch::nn::Module {
  static constexpr int64_t kExpansion = 1;

  BasicBlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1(register_module("conv1", Convolution(in, out, 3, stride))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(out))),
        conv2(register_module("conv2", Convolution(out, out, 3, 1))),
        bn2(register_module("bn2", torch::nn::BatchNorm2d(out))) {
    if (stride == 1 && in == out) return;
    downsample = register_module(
        "downsample",
        torch::nn::Sequential(Convolution(in, out, 1, stride), torch::nn::BatchNorm2d(out)));
  }

  torch::Tensor forward(torch::Tensor x) {
    const torch::Tensor y = bn2(conv2(torch::relu(bn1(conv1(x)))));
    return torch::relu(y + (downsample.is_empty() ? x : downsample->forward(x)));
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
  torch::nn::Sequential downsample{nullptr};
};
TORCH_MODULE(BasicBlock);

// Parameters and buffers have torchvision's names.
struct ResNet : CopiedImageNetwork<ResNet> {
  explicit ResNet(const ResNetOptions& how = {})
      : options(how),
        conv1(register_module("conv1", Convolution(3, options.width, 7, 2))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(options.width))) {
    int64_t in = options.width;
    int64_t narrow = options.width;
    for (size_t i = 0; i < options.blocks.size(); ++i) {
      torch::nn::Sequential stage;
      for (int64_t block = 0; block < options.blocks[i]; ++block) {
        const int64_t stride = i > 0 && block == 0 ? 2 : 1;
        if (options.bottleneck) {
          stage->push_back(Bottleneck(in, narrow, stride));
          in = narrow * BottleneckImpl::kExpansion;
        } else {
          stage->push_back(BasicBlock(in, narrow, stride));
          in = narrow * BasicBlockImpl::kExpansion;
        }
      }
      stages.push_back(register_module("layer" + std::to_string(i + 1), stage));
      narrow *= 2;
    }
    fc = register_module("fc", torch::nn::Linear(in, options.classes));
    for (const auto& module : modules(/*include_self=*/false)) {
      if (auto* convolution = module->as<torch::nn::Conv2d>()) {
        torch::nn::init::kaiming_normal_(convolution->weight, /*a=*/0, torch::kFanOut,
                                         torch::kReLU);
      }
    }
  }

  torch::Tensor forward(torch::Tensor x) override {
    x = torch::relu(bn1(conv1(x)));
    x = torch::max_pool2d(x, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
    for (torch::nn::Sequential& stage : stages) x = stage->forward(x);
    return fc(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }

  const ResNetOptions options;
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  std::vector<torch::nn::Sequential> stages;
  torch::nn::Linear fc{nullptr};
};

}  // namespace cadre

#endif  // CADRE_EXAMPLES_CIFAR_RESNET50_RESNET_H_
