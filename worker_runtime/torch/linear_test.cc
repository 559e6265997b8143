#include "worker_runtime/torch/linear.h"

#include <functional>
#include <memory>
#include <sstream>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/nn/functional/activation.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/torch/data_parallel.h"
#include "worker_runtime/torch/ranks_for_test.h"

namespace cadre::nn {
namespace {

// The middle layer's weight is used twice where `twice` is set.
template <typename Layer>
struct NetOf : torch::nn::Module {
  explicit NetOf(bool with_bias = true)
      : first(register_module("first", Layer(5, 7))),
        middle(register_module("middle", Layer(torch::nn::LinearOptions(7, 7).bias(with_bias)))),
        last(register_module("last", Layer(7, 3))) {}
  torch::Tensor forward(torch::Tensor x, bool twice = false) {
    x = torch::relu(middle(torch::relu(first(x))));
    return last(twice ? torch::relu(middle(x)) : x);
  }
  Layer first, middle, last;
};
using Ours = NetOf<Linear>;
using Torchs = NetOf<torch::nn::Linear>;

// The same values in both.
void CopyValues(const torch::nn::Module& from, torch::nn::Module& to) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : from.named_parameters()) {
    to.named_parameters()[item.key()].copy_(item.value());
  }
}

void ExpectEqual(const torch::nn::Module& a, const torch::nn::Module& b) {
  for (const auto& item : a.named_parameters()) {
    const torch::Tensor other = b.named_parameters()[item.key()];
    EXPECT_TRUE(torch::equal(item.value(), other)) << item.key();
    ASSERT_EQ(item.value().grad().defined(), other.grad().defined()) << item.key();
    if (!other.grad().defined()) continue;
    EXPECT_TRUE(torch::equal(item.value().grad(), other.grad())) << "gradient of " << item.key();
  }
}

TEST(Linear, OutsideOfDataParallelIsTorchs) {
  torch::manual_seed(1);
  Linear layer(5, 7);
  torch::manual_seed(1);
  torch::nn::Linear torchs(5, 7);
  ExpectEqual(*layer, *torchs);
  const torch::Tensor input = torch::randn({4, 5});
  layer(input).sum().backward();
  torchs(input).sum().backward();
  ExpectEqual(*layer, *torchs);
  std::ostringstream text;
  text << *layer;
  EXPECT_EQ(text.str(), "cadre::nn::Linear(in_features=5, out_features=7, bias=true)");
  EXPECT_NE(std::dynamic_pointer_cast<LinearImpl>(layer->clone()), nullptr);
}

TEST(Linear, TheWeightsGradientIsComputedWhereItIsReduced) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<Ours>();
    auto model = DataParallel<Ours>::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    std::vector<const void*> seen;
    net->middle->weight.register_hook(
        [&](const torch::Tensor& gradient) { seen.push_back(gradient.data_ptr()); });
    const auto place = [&] { return (*model)->reducer().Gradient(2).data; };
    ASSERT_EQ((*model)->reducer().parameters()[2].name, "middle.weight");
    for (int step = 0; step < 3; ++step) {
      (*model)->ZeroGrad();
      (*model)->forward(torch::randn({4, 5})).sum().backward();
      ASSERT_OK((*model)->Finish());
      EXPECT_EQ(seen.back(), place()) << "step " << step;
      EXPECT_EQ(net->middle->weight.grad().data_ptr(), place());
    }
    // What adds to something needs memory of its own.
    (*model)->forward(torch::randn({4, 5})).sum().backward();
    ASSERT_OK((*model)->Finish());
    EXPECT_NE(seen.back(), place());
  });
}

TEST(Linear, TrainsAsTorchsDoesBitForBit) {
  OnEachRank(2, [](Communicator& communicator) {
    auto ours = std::make_shared<Ours>(/*with_bias=*/false);
    auto torchs = std::make_shared<Torchs>(/*with_bias=*/false);
    CopyValues(*torchs, *ours);
    auto model = DataParallel<Ours>::Create(ours, communicator, SmallBuckets());
    ASSERT_OK(model);
    auto peer = DataParallel<Torchs>::Create(torchs, communicator, SmallBuckets());
    ASSERT_OK(peer);
    CopyValues(*torchs, *ours);
    torch::optim::SGD sgd(ours->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    torch::optim::SGD peers(torchs->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    std::vector<torch::Tensor> inputs;
    for (int64_t step = 0; step < 50; ++step) {
      // Matrices and stacks of them; sometimes accumulated first.
      const torch::Tensor input = step % 3 == 0 ? torch::randn({2, 3, 5}) : torch::randn({4, 5});
      const auto train = [&](auto& parallel, auto& optimizer) {
        if (step % 2 == 0)
          parallel.ZeroGrad();
        else
          optimizer.zero_grad();
        if (step % 5 == 0) {
          typename std::decay_t<decltype(parallel)>::NoSync no_sync(parallel);
          parallel.forward(input * 2).pow(2).mean().backward();
          EXPECT_OK(parallel.Finish());
        }
        parallel.forward(input).pow(2).mean().backward();
        ASSERT_OK(parallel.Finish());
        optimizer.step();
      };
      train(**model, sgd);
      train(**peer, peers);
      ExpectEqual(*ours, *torchs);
    }
  });
}

TEST(Linear, AWeightMayBeUsedTwice) {
  OnEachRank(2, [](Communicator& communicator) {
    auto ours = std::make_shared<Ours>();
    auto torchs = std::make_shared<Torchs>();
    auto model = DataParallel<Ours>::Create(ours, communicator, SmallBuckets());
    ASSERT_OK(model);
    auto peer = DataParallel<Torchs>::Create(torchs, communicator, SmallBuckets());
    ASSERT_OK(peer);
    CopyValues(*torchs, *ours);
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor input = torch::randn({4, 5});
      (*model)->ZeroGrad();
      (*model)->forward(input, /*twice=*/true).sum().backward();
      ASSERT_OK((*model)->Finish());
      (*peer)->ZeroGrad();
      (*peer)->forward(input, /*twice=*/true).sum().backward();
      ASSERT_OK((*peer)->Finish());
      ExpectEqual(*ours, *torchs);
    }
  });
}

TEST(Linear, WhatGradReturnsIsTheCallers) {
  OnEachRank(1, [](Communicator& communicator) {
    auto net = std::make_shared<Ours>();
    auto model = DataParallel<Ours>::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    const torch::Tensor weight = net->middle->weight;
    const torch::Tensor output = (*model)->forward(torch::randn({4, 5})).pow(2).sum();
    const torch::Tensor plain = torch::autograd::grad({output}, {weight}, {}, true)[0];
    EXPECT_NE(plain.data_ptr(), (*model)->reducer().Gradient(2).data);
    const torch::Tensor twice = torch::autograd::grad({output}, {weight}, {}, /*retain_graph=*/true,
                                                      /*create_graph=*/true)[0];
    EXPECT_TRUE(torch::equal(plain, twice));
    const torch::Tensor second = torch::autograd::grad({twice.sum()}, {weight}, {}, true)[0];
    EXPECT_TRUE(torch::any(second.ne(0)).item<bool>());
    output.backward();
    ASSERT_OK((*model)->Finish());
    EXPECT_TRUE(torch::equal(weight.grad(), plain));
  });
}

}  // namespace
}  // namespace cadre::nn
