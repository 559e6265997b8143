// The models that are trained, and random batches for them. models.py has the same ones.
#ifndef CADRE_BENCH_TRAINING_MODELS_H_
#define CADRE_BENCH_TRAINING_MODELS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "torch/nn/functional/activation.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/activation.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/pooling.h"
#include "torch/types.h"

namespace cadre::bench {

struct Model : torch::nn::Module {
  virtual torch::Tensor forward(torch::Tensor x) = 0;
  virtual torch::Tensor Batch() const = 0;
};

// Six linear layers of 2048: 25 million parameters.
struct Mlp : Model {
  Mlp() {
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    }
  }
  torch::Tensor forward(torch::Tensor x) override {
    for (int i = 0; i < kLayers; ++i) {
      x = layers[i](x);
      if (i + 1 < kLayers) x = torch::relu(x);
    }
    return x;
  }
  torch::Tensor Batch() const override { return torch::randn({32, kWidth}); }

  static constexpr int kLayers = 6;
  static constexpr int64_t kWidth = 2048;
  std::vector<torch::nn::Linear> layers;
};

struct MnistCnn : Model {
  torch::Tensor forward(torch::Tensor x) override {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return fc2(torch::relu(fc1(x.flatten(1))));
  }
  torch::Tensor Batch() const override { return torch::randn({64, 1, 28, 28}); }

  torch::nn::Conv2d conv1 = register_module(
      "conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 20, /*kernel_size=*/5)));
  torch::nn::Conv2d conv2 = register_module(
      "conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(20, 50, /*kernel_size=*/5)));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(4 * 4 * 50, 500));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(500, 10));
};

inline torch::nn::Conv2d Convolution(int64_t from, int64_t to, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(from, to, kernel).stride(stride).padding(kernel / 2).bias(false));
}

struct Bottleneck : torch::nn::Module {
  Bottleneck(int64_t from, int64_t width, int64_t stride)
      : body(register_module(
            "body", torch::nn::Sequential(
                        Convolution(from, width, 1, 1), torch::nn::BatchNorm2d(width),
                        torch::nn::ReLU(), Convolution(width, width, 3, stride),
                        torch::nn::BatchNorm2d(width), torch::nn::ReLU(),
                        Convolution(width, 4 * width, 1, 1), torch::nn::BatchNorm2d(4 * width)))) {
    if (stride == 1 && from == 4 * width) return;
    shortcut =
        register_module("shortcut", torch::nn::Sequential(Convolution(from, 4 * width, 1, stride),
                                                          torch::nn::BatchNorm2d(4 * width)));
  }
  torch::Tensor forward(torch::Tensor x) {
    return torch::relu(body->forward(x) + (shortcut.is_empty() ? x : shortcut->forward(x)));
  }
  torch::nn::Sequential body;
  torch::nn::Sequential shortcut{nullptr};
};

struct ResNet50 : Model {
  ResNet50() {
    body->push_back(Convolution(3, 64, 7, 2));
    body->push_back(torch::nn::BatchNorm2d(64));
    body->push_back(torch::nn::ReLU());
    body->push_back(torch::nn::MaxPool2d(torch::nn::MaxPool2dOptions(3).stride(2).padding(1)));
    int64_t from = 64;
    const std::vector<int> blocks = {3, 4, 6, 3};
    for (size_t stage = 0; stage < blocks.size(); ++stage) {
      const int64_t width = int64_t{64} << stage;
      for (int block = 0; block < blocks[stage]; ++block) {
        const int64_t stride = block == 0 && stage > 0 ? 2 : 1;
        body->push_back(std::make_shared<Bottleneck>(from, width, stride));
        from = 4 * width;
      }
    }
    register_module("body", body);
  }
  torch::Tensor forward(torch::Tensor x) override { return head(body->forward(x).mean({2, 3})); }
  torch::Tensor Batch() const override { return torch::randn({4, 3, 64, 64}); }

  torch::nn::Sequential body;
  torch::nn::Linear head = register_module("head", torch::nn::Linear(2048, 1000));
};

// Null: there is no such model.
inline std::shared_ptr<Model> MakeModel(const std::string& name) {
  if (name == "mlp") return std::make_shared<Mlp>();
  if (name == "mnist") return std::make_shared<MnistCnn>();
  if (name == "resnet50") return std::make_shared<ResNet50>();
  return nullptr;
}

}  // namespace cadre::bench

#endif  // CADRE_BENCH_TRAINING_MODELS_H_
