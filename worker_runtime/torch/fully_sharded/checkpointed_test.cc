#include "cadre/torch/checkpointed.h"

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "cadre/torch/autocast.h"
#include "cadre/torch/recomputation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/linear.h"
#include "torch/version.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Checkpoint : public ::testing::Test {
 protected:
  // Before the first backward pass of the process, which counts the devices.
  static void SetUpTestSuite() { pretend::Install(1); }
};

struct Block : torch::nn::Module {
  explicit Block(int width) {
    linear = register_module("linear", torch::nn::Linear(width, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    dropout = register_module("dropout", torch::nn::Dropout(0.3));
    last = register_module("last", torch::nn::Linear(width, width));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    ++runs;
    return x + last(torch::tanh(dropout(norm(linear(x)))));
  }
  torch::nn::Linear linear{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  int runs = 0;
};

enum class How { kPlain, kEach, kNested, kOffloaded };

struct Net : torch::nn::Module {
  explicit Net(How how) : how(how) {
    torch::manual_seed(3);
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>(6)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    CheckpointOptions options;
    options.offload_to_host = how == How::kOffloaded;
    if (how != How::kNested) {
      for (const auto& block : blocks) {
        x = how == How::kPlain ? block->forward(x) : CheckpointedWith(options, block, x);
      }
      return x;
    }
    options.modules = {blocks[0].get(), blocks[1].get()};
    x = CheckpointedWith(
        options,
        [this](const torch::Tensor& y) {
          return Checkpointed(blocks[1], Checkpointed(blocks[0], y));
        },
        x);
    return Checkpointed(*blocks[2], x);
  }
  std::vector<std::shared_ptr<Block>> blocks;
  const How how;
};

// Everything that three steps leave behind.
std::vector<torch::Tensor> Train(How how, torch::Device device = torch::kCPU, bool dropout = true) {
  Net net(how);
  if (!dropout) {
    for (const auto& block : net.blocks) block->dropout->options.p(0);
  }
  net.to(device);
  torch::manual_seed(5);
  std::vector<torch::Tensor> left;
  for (int step = 0; step < 3; ++step) {
    for (torch::Tensor& parameter : net.parameters()) parameter.mutable_grad() = torch::Tensor();
    torch::Tensor input = (torch::arange(24).view({4, 6}).to(torch::kFloat32) * 0.1 + step).sin();
    input = input.to(device).requires_grad_(step > 0);
    net.forward(input).pow(2).mean().backward();
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : net.parameters()) {
      left.push_back(parameter.grad().cpu().clone());
      parameter.sub_(parameter.grad() * 0.1);
    }
    if (step > 0) left.push_back(input.grad().cpu());
  }
  for (const torch::Tensor& buffer : net.buffers()) left.push_back(buffer.cpu());
  // What the generator draws next.
  left.push_back(torch::rand({4}));
  return left;
}

void ExpectSameAs(const std::vector<torch::Tensor>& ours,
                  const std::vector<torch::Tensor>& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(ours[i].equal(theirs[i])) << i << ours[i] << theirs[i];
  }
}

// With dropout, whose second run must draw what the first drew, and statistics that count once.
TEST_F(Checkpoint, HasTheBitsOfTrainingWithout) {
  const auto plain = Train(How::kPlain);
  for (const How how : {How::kEach, How::kNested, How::kOffloaded}) ExpectSameAs(Train(how), plain);
}

// Without dropout: the pretend device draws by the host's generator, when it comes to it.
TEST_F(Checkpoint, OnADevice) {
  const auto plain = Train(How::kPlain, pretend::Device(), false);
  for (const How how : {How::kEach, How::kNested, How::kOffloaded}) {
    SCOPED_TRACE(static_cast<int>(how));
    ExpectSameAs(Train(how, pretend::Device(), false), plain);
  }
}

TEST_F(Checkpoint, RunsTwiceWhereThereAreGradientsAndOnceWhereNot) {
  Net net(How::kEach);
  const torch::Tensor input = torch::ones({4, 6});
  const torch::Tensor loss = net.forward(input).sum();
  EXPECT_EQ(net.blocks[0]->runs, 1);
  loss.backward();
  EXPECT_EQ(net.blocks[0]->runs, 2);
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(net.forward(input).requires_grad());
  EXPECT_EQ(net.blocks[0]->runs, 3);
}

TEST_F(Checkpoint, ReturnsAPair) {
  torch::Tensor x = torch::ones({3}).requires_grad_();
  const auto pair =
      Checkpointed([](const torch::Tensor& x) { return std::make_pair(x * 2, x * 3); }, x);
  (pair.first + pair.second).sum().backward();
  EXPECT_TRUE(x.grad().equal(torch::full({3}, 5.0f)));
}

TEST_F(Checkpoint, KeepsNothingButItsInputs) {
  const torch::Device device = pretend::Device();
  const auto live_after_forward = [&](How how) {
    torch::Tensor x = torch::ones({64, 64}).to(device).requires_grad_();
    const size_t before = pretend::LiveBytes();
    const auto function = [](torch::Tensor y) {
      for (int i = 0; i < 5; ++i) y = torch::tanh(y);
      return y;
    };
    CheckpointOptions options;
    options.offload_to_host = how == How::kOffloaded;
    torch::Tensor y = x * 2;
    y = how == How::kPlain ? function(y) : CheckpointedWith(options, function, y);
    y = torch::sum(y);
    (void)y.cpu();
    const size_t live = pretend::LiveBytes() - before;
    y.backward();
    EXPECT_TRUE(x.grad().defined());
    return live / (64 * 64 * sizeof(float));
  };
  EXPECT_EQ(live_after_forward(How::kPlain), 5);
  EXPECT_EQ(live_after_forward(How::kEach), 1);
  EXPECT_EQ(live_after_forward(How::kOffloaded), 0);
}

TEST_F(Checkpoint, TakesAndReturnsWhatFunctionsTakeAndReturn) {
  const auto function = [](const torch::Tensor& a, double factor,
                           const std::vector<torch::Tensor>& list, const torch::Tensor& missing) {
    EXPECT_FALSE(missing.defined());
    const torch::Tensor sum = a * factor + list[0] * list[1];
    return std::make_tuple(sum, std::vector<torch::Tensor>{sum * 2, a}, a.argmax(),
                           torch::Tensor());
  };
  std::vector<torch::Tensor> gradients[2];
  for (const bool checkpointed : {false, true}) {
    torch::Tensor a = torch::arange(3.0f).requires_grad_();
    torch::Tensor b = (torch::arange(3.0f) + 1).requires_grad_();
    const torch::Tensor c = torch::arange(3.0f) + 2;
    const std::vector<torch::Tensor> list = {b, c};
    const auto [sum, pair, index, none] =
        checkpointed ? Checkpointed(function, a, 3.0, list, torch::Tensor())
                     : function(a, 3.0, list, torch::Tensor());
    EXPECT_EQ(index.item<int64_t>(), 2);
    EXPECT_FALSE(index.requires_grad());
    EXPECT_FALSE(none.defined());
    (sum.sum() + pair[0].pow(2).sum() + pair[1].sum()).backward();
    EXPECT_FALSE(c.grad().defined());
    gradients[checkpointed] = {a.grad(), b.grad(), sum.detach(), pair[1].detach()};
  }
  ExpectSameAs(gradients[1], gradients[0]);
}

TEST_F(Checkpoint, RandomNumbersMayDiffer) {
  CheckpointOptions options;
  options.preserve_random = false;
  torch::Tensor x = torch::ones({1000}).requires_grad_();
  const torch::Tensor y = CheckpointedWith(
      options, [](const torch::Tensor& x) { return torch::dropout(x, 0.5, true); }, x);
  y.sum().backward();
  EXPECT_FALSE(y.detach().equal(x.grad()));
}

TEST_F(Checkpoint, RunsAgainUnderTheSameAutocast) {
  std::vector<torch::Tensor> gradients[2];
  for (const bool checkpointed : {false, true}) {
    torch::manual_seed(1);
    torch::nn::Linear linear(8, 8);
    std::vector<torch::ScalarType> types;
    const auto function = [&](const torch::Tensor& x) {
      const torch::Tensor y = linear(x);
      types.push_back(y.scalar_type());
      return torch::tanh(y);
    };
    torch::Tensor loss;
    {
      const Autocast in_16_bits(torch::kCPU, torch::kBFloat16);
      const torch::Tensor x = torch::ones({2, 8});
      // The parameter's copy of the first run has no graph.
      torch::Tensor y = checkpointed ? Checkpointed(function, x) : function(x);
      loss = linear(y).to(torch::kFloat32).pow(2).mean();
    }
    loss.backward();
    for (const torch::ScalarType type : types) EXPECT_EQ(type, torch::kBFloat16);
    EXPECT_EQ(types.size(), checkpointed ? 2u : 1u);
    for (const torch::Tensor& parameter : linear->parameters()) {
      gradients[checkpointed].push_back(parameter.grad());
    }
  }
  for (size_t i = 0; i < 2; ++i) {
    // The two uses' gradients are added in float32 and not in bfloat16.
    EXPECT_TRUE(gradients[1][i].allclose(gradients[0][i], 1e-2, 1e-3))
        << gradients[1][i] << gradients[0][i];
  }
}

std::string ErrorOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "none";
}

TEST_F(Checkpoint, WhatItCannotDoIsAnError) {
  torch::Tensor x = torch::ones({3}).requires_grad_();
  const auto square = [](const torch::Tensor& x) { return x * x; };

  torch::Tensor y = x * 1;
  torch::Tensor z = Checkpointed(square, y);
  y.mul_(2);
  EXPECT_THAT(ErrorOf([&] { z.sum().backward(); }), HasSubstr("modified by an inplace operation"));

  z = Checkpointed(square, x);
  EXPECT_THAT(ErrorOf([&] { torch::autograd::grad({z.sum()}, {x}); }),
              HasSubstr("call backward() without inputs"));

  z = Checkpointed(square, x).sum();
  z.backward();
  EXPECT_THAT(ErrorOf([&] { z.backward(); }), HasSubstr("a second"));

  int runs = 0;
  z = Checkpointed([&runs](const torch::Tensor& x) { return runs++ == 0 ? x * x : x.sum(); }, x);
  EXPECT_THAT(ErrorOf([&] { z.sum().backward(); }),
              AllOf(HasSubstr("Float [3]"), HasSubstr("Float []"),
                    HasSubstr("must do the same both times")));
}

TEST_F(Checkpoint, ARetainedGraphIsGoneThroughTwice) {
  torch::Tensor x = torch::ones({3}).requires_grad_();
  const torch::Tensor loss = Checkpointed([](const torch::Tensor& x) { return x * x; }, x).sum();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  EXPECT_TRUE(x.grad().equal(torch::full({3}, 4.0f)));
}

TEST_F(Checkpoint, AnExceptionOfTheSecondRunIsTheBackwardPasss) {
  torch::Tensor x = torch::ones({3}).requires_grad_();
  int runs = 0;
  const torch::Tensor z = Checkpointed(
      [&runs](const torch::Tensor& x) {
        TORCH_CHECK(runs++ == 0, "no second time");
        return x * x;
      },
      x);
  EXPECT_THAT(ErrorOf([&] { z.sum().backward(); }), HasSubstr("no second time"));
  EXPECT_FALSE(IsRecomputing());
}

}  // namespace
}  // namespace cadre::nn
