#include "cadre/torch/checkpointed.h"

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/autocast.h"
#include "cadre/torch/fully_sharded.h"
#include "cadre/torch/sharded_data_parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/linear.h"
#include "torch/version.h"
#include "worker_runtime/torch/fully_sharded/unit_net_for_test.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"
#include "worker_runtime/torch/recomputation.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Checkpoint : public ::testing::Test {
 protected:
  // Installs the devices before the first backward pass of the process, because autograd counts
  // them then.
  static void SetUpTestSuite() { pretend::Install(4); }
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

// Returns everything that three steps leave behind.
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
  // These are the numbers that the generator draws next.
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

// The net has dropout, whose second run must draw what the first drew, and statistics that must be
// updated once.
TEST_F(Checkpoint, HasTheBitsOfTrainingWithout) {
  const auto plain = Train(How::kPlain);
  for (const How how : {How::kEach, How::kNested, How::kOffloaded}) ExpectSameAs(Train(how), plain);
}

// There is no dropout here: the pretend device draws from the host's generator, and later than the
// host does.
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
    // The gradients of the two uses are added in float32 and not in bfloat16.
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
  EXPECT_THAT(ErrorOf([&] { z.backward(); }), HasSubstr("an earlier backward pass"));

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

// Checkpointed inside the wrappers: gradients of a backward pass within the backward pass are
// averaged like all others.

namespace {

// Where Checkpointed is used: nowhere; around each block, which is a unit; around two blocks;
// inside a block, around what follows the inner unit; around everything, one inside the other.
enum class Place { kNone, kUnit, kPair, kInside, kNested };

struct WrappedBlock : torch::nn::Module {
  explicit WrappedBlock(int width) {
    inner = register_module("inner", torch::nn::Linear(width, 2 * width + 1));
    outer = register_module("outer", torch::nn::Linear(2 * width + 1, width));
  }
  torch::Tensor forward(const torch::Tensor& x, bool checkpointed) {
    const auto rest = [this](const torch::Tensor& y) { return outer(torch::tanh(y)); };
    const torch::Tensor y = CallUnit(inner, x);
    return x + (checkpointed ? Checkpointed(rest, y) : rest(y));
  }
  torch::nn::Linear inner{nullptr}, outer{nullptr};
};

struct WrappedNet : torch::nn::Module {
  WrappedNet(int seed, Place place) : place(place) {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(
          register_module("block" + std::to_string(i), std::make_shared<WrappedBlock>(12)));
    }
    head = register_module("head", torch::nn::Linear(12, 3));
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : parameters()) {
      parameter.copy_(0.2 *
                      (torch::arange(parameter.numel()) * 0.7 + seed).sin().view_as(parameter));
    }
  }
  // The forward pass leaves out the first `skipped` blocks. The input of the first block requires
  // no gradient.
  torch::Tensor forward(torch::Tensor x, size_t skipped = 0) {
    const bool inside = place == Place::kInside;
    const auto pair = [this](size_t i) {
      return [this, i](const torch::Tensor& y) {
        if (place == Place::kNested) {
          return Checkpointed(blocks[i + 1], Checkpointed(blocks[i], y, false), false);
        }
        return CallUnit(blocks[i + 1], CallUnit(blocks[i], y, false), false);
      };
    };
    for (size_t i = skipped; i < blocks.size(); ++i) {
      if (place == Place::kPair || place == Place::kNested) {
        x = Checkpointed(pair(i++), x);
      } else {
        x = place == Place::kUnit ? Checkpointed(blocks[i], x, false)
                                  : CallUnit(blocks[i], x, inside);
      }
    }
    // The backward pass begins with an inner backward pass.
    const bool with_head = place == Place::kUnit || place == Place::kNested;
    return torch::tanh(with_head ? Checkpointed(head, x) : head(x)).sum(1);
  }
  std::vector<std::string> units() const {
    return {"block0", "block0.inner", "block1", "block2", "block3"};
  }
  std::vector<std::shared_ptr<WrappedBlock>> blocks;
  torch::nn::Linear head{nullptr};
  const Place place;
};

enum class Wrapper { kDataParallel, kStage2, kFullySharded };

class CheckpointedRanks : public ::testing::TestWithParam<std::tuple<Where, Wrapper>> {
 protected:
  static Where where() { return std::get<0>(GetParam()); }
  static Wrapper wrapper() { return std::get<1>(GetParam()); }

  static torch::Tensor Input(const Communicator& communicator, int step) {
    return InputFor(communicator.rank(), step, DeviceFor(where(), communicator));
  }
  template <typename Model>
  static void OnePass(Communicator& communicator, Model& model, int step) {
    // Every second step leaves blocks out.
    const size_t skipped = step % 2 == 0 ? 0 : 2;
    model.forward(Input(communicator, step), skipped).pow(2).mean().backward();
    ASSERT_OK(model.Finish());
  }

  static void TrainFullySharded(Communicator& communicator, const std::shared_ptr<WrappedNet>& net,
                                int steps, size_t* most) {
    auto model =
        FullySharded<WrappedNet>::Create(net, net->units(), communicator, UnitOptions(where()));
    ASSERT_OK(model);
    const auto optimizer = MakeOptimizer(Kind::kAdam, (*model)->shards());
    for (int step = 0; step < steps; ++step) {
      (*model)->ZeroGrad();
      OnePass(communicator, **model, step);
      ASSERT_OK((*model)->Step(*optimizer));
    }
    *most = (*model)->most_gathered_bytes();
    EXPECT_EQ((*model)->gathered_bytes(), 0);
    auto full = FullySharded<WrappedNet>::FullParameters::Gather(**model, /*keep=*/false);
    ASSERT_OK(full);
    values_of(communicator) = ParametersOf(*net);
  }

  static void TrainOthers(Communicator& communicator, const std::shared_ptr<WrappedNet>& net,
                          int steps) {
    DataParallelOptions options = SmallBuckets();
    options.connect_device = ConnectFor(where());
    const auto plain = MakeOptimizer(Kind::kAdam, net->parameters());
    std::unique_ptr<ShardedOptimizer> optimizer;
    std::unique_ptr<DataParallel<WrappedNet>> model;
    if (wrapper() == Wrapper::kStage2) {
      optimizer = *ShardedOptimizer::Create(*net, *plain, communicator, OptimizerOptions(where()));
      model = *ShardedDataParallel<WrappedNet>::Create(net, *optimizer, options);
    } else {
      model = *DataParallel<WrappedNet>::Create(net, communicator, options);
    }
    for (int step = 0; step < steps; ++step) {
      model->ZeroGrad();
      OnePass(communicator, *model, step);
      if (optimizer != nullptr) {
        ASSERT_OK(optimizer->Step());
      } else {
        plain->step();
      }
    }
    values_of(communicator) = ParametersOf(*net);
  }

  // Returns each rank's parameters after some steps.
  static RanksValues Train(int ranks, Place place, size_t* most, int steps = 4) {
    values_.assign(static_cast<size_t>(ranks), {});
    std::vector<size_t> each(static_cast<size_t>(ranks), 0);
    OnEachRank(ranks, [&](Communicator& communicator) {
      const auto net = std::make_shared<WrappedNet>(1 + communicator.rank(), place);
      net->to(DeviceFor(where(), communicator));
      if (wrapper() == Wrapper::kFullySharded) {
        TrainFullySharded(communicator, net, steps,
                          &each[static_cast<size_t>(communicator.rank())]);
      } else {
        TrainOthers(communicator, net, steps);
      }
    });
    *most = each[0];
    return values_;
  }

 private:
  static std::vector<torch::Tensor>& values_of(const Communicator& communicator) {
    return values_[static_cast<size_t>(communicator.rank())];
  }
  static RanksValues values_;
};

RanksValues CheckpointedRanks::values_;

std::string NameOfRanks(const ::testing::TestParamInfo<std::tuple<Where, Wrapper>>& info) {
  const char* const wrappers[] = {"DataParallel", "Stage2", "FullySharded"};
  return NameOfWay(std::get<0>(info.param)) + wrappers[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(Each, CheckpointedRanks,
                         ::testing::Combine(EachWay(), ::testing::Values(Wrapper::kDataParallel,
                                                                         Wrapper::kStage2,
                                                                         Wrapper::kFullySharded)),
                         NameOfRanks);

TEST_P(CheckpointedRanks, TrainsAsWithout) {
  for (const int ranks : {1, 2, 3, 4}) {
    size_t most = 0, most_without = 0;
    const RanksValues without = Train(ranks, Place::kNone, &most_without);
    for (const Place place : {Place::kUnit, Place::kPair, Place::kInside, Place::kNested}) {
      SCOPED_TRACE("place " + std::to_string(static_cast<int>(place)));
      ExpectClose(Train(ranks, place, &most), without, /*same_bits=*/true);
      // Units that are in one Checkpointed are gathered at the same time.
      if (place == Place::kUnit || place == Place::kInside) {
        EXPECT_LE(most, most_without);
      }
    }
  }
}

}  // namespace

}  // namespace cadre::nn
