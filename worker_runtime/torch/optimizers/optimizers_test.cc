// Tests of optimizers that communicate, on the host and on devices, and of fused ones.
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/distributed_optimizer.h"
#include "cadre/torch/fused_adam.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/optim/adam.h"
#include "torch/optim/sgd.h"
#include "torch/serialize.h"
#include "torch/utils.h"
#include "worker_runtime/torch/optimizer_state.h"
#include "worker_runtime/torch/pretend_device/pretend_communicator.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"
#include "worker_runtime/torch/ranks_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 2;

const ::testing::Environment* const kDevices = pretend::InstallBeforeTests(kRanks);

// Two parameters whose gradients a test chooses.
struct Model {
  explicit Model(float value)
      : a(torch::full({6}, value).set_requires_grad(true)),
        b(torch::full({2, 2}, value).set_requires_grad(true)) {}

  // With a learning rate of 1 a step subtracts the gradient.
  torch::optim::SGD Sgd(double rate = 1) {
    return torch::optim::SGD({a, b}, torch::optim::SGDOptions(rate));
  }
  torch::Tensor Loss(const torch::Tensor& da, float db) { return (a * da).sum() + (b * db).sum(); }

  torch::Tensor a, b;
};

torch::Tensor T(std::vector<float> values) { return torch::tensor(values); }

bool Equal(const torch::Tensor& ours, const torch::Tensor& expected) {
  return torch::equal(ours.detach(), expected.expand_as(ours));
}

TEST(DistributedOptimizer, Fp32_UpdatesWithTheAverage) {
  for (const size_t threshold : {size_t{0}, size_t{5}, hooks::kFusionThreshold}) {
    OnEachRank(kRanks, [threshold](Communicator& communicator) {
      const float mine = 1.0f + 2 * communicator.rank();
      Model model(mine);
      auto sgd = model.Sgd();
      auto optimizer = DistributedOptimizer::Create(sgd, communicator, kLong);
      ASSERT_OK(optimizer);
      EXPECT_TRUE(Equal(model.a, T({1}))) << "rank 0's values";
      for (int step = 1; step <= 3; ++step) {
        const auto loss = model.Loss(T({1, 2, 3, 4, 5, 6}) * mine, mine);
        ASSERT_OK((*optimizer)->BackwardAndUpdate(loss, threshold));
        EXPECT_TRUE(Equal(model.a, 1 - 2 * step * T({1, 2, 3, 4, 5, 6}))) << model.a;
        EXPECT_TRUE(Equal(model.b, T({1.0f - 2 * step}))) << model.b;
      }
      EXPECT_EQ((*optimizer)->bytes_given(), 3u * 10 * 4);
    });
  }
}

TEST(DistributedOptimizer, AnyOptimizer_StepsAsAloneWithTheAverage) {
  OnEachRank(kRanks, [](Communicator& communicator) {
    Model model(1), alone(1);
    torch::optim::Adam adam({model.a, model.b}, torch::optim::AdamOptions(0.1));
    torch::optim::Adam adam_alone({alone.a, alone.b}, torch::optim::AdamOptions(0.1));
    auto optimizer = DistributedOptimizer::Create(adam, communicator, kLong);
    ASSERT_OK(optimizer);
    for (int step = 1; step <= 4; ++step) {
      const float mine = step * (communicator.rank() == 0 ? 1.0f : -3.0f);
      ASSERT_OK((*optimizer)->BackwardAndUpdate(model.Loss(T({mine}), mine)));
      adam_alone.zero_grad();
      alone.Loss(T({-1.0f * step}), -1.0f * step).backward();
      adam_alone.step();
      EXPECT_TRUE(Equal(model.a, alone.a)) << model.a;
      EXPECT_TRUE(Equal(model.b, alone.b)) << model.b;
    }
  });
}

TEST(DistributedOptimizer, Half_RoundsToSixteenBits) {
  OnEachRank(kRanks, [](Communicator& communicator) {
    Model model(0);
    auto sgd = model.Sgd();
    auto optimizer = DistributedOptimizer::Create(sgd, communicator, kLong);
    ASSERT_OK(optimizer);
    // 2049 is 2048 in half; 60000 from both ranks would overflow if summed before divided.
    const auto loss = model.Loss(T({2049, 60000, 1, 1, 1, 1}), 500);
    ASSERT_OK((*optimizer)->BackwardAndUpdateHalf(loss));
    EXPECT_TRUE(Equal(model.a, -T({2048, 60000, 1, 1, 1, 1}))) << model.a;
    const uint64_t bytes = (*optimizer)->bytes_given();
    EXPECT_EQ(bytes, 10u * 2);
    ASSERT_OK((*optimizer)->BackwardAndUpdateHalf(model.Loss(T({-9999}), 9999), 3, true));
    EXPECT_TRUE(Equal(model.b, T({-500 - 100}))) << "clipped to 100: " << model.b;
    EXPECT_EQ((*optimizer)->bytes_given(), 2 * bytes);
  });
}

TEST(DistributedOptimizer, Partial_OwnGradientsAndOneGroupAtATime) {
  OnEachRank(kRanks, [](Communicator& communicator) {
    const float mine = 1.0f + 2 * communicator.rank();
    Model model(0);
    auto sgd = model.Sgd();
    auto optimizer = DistributedOptimizer::Create(sgd, communicator, kLong);
    ASSERT_OK(optimizer);
    // The groups are in reverse order: b, then a.
    ASSERT_OK((*optimizer)->BackwardAndPartialUpdate(model.Loss(T({mine}), mine), 3));
    EXPECT_TRUE(Equal(model.a, T({-mine}))) << model.a;
    EXPECT_TRUE(Equal(model.b, T({-2}))) << model.b;
    const auto state = (*optimizer)->SaveState();
    ASSERT_OK(state);
    // This is what happens after a restart.
    auto resumed_sgd = model.Sgd();
    const torch::Tensor a = model.a.detach().clone();
    auto resumed = DistributedOptimizer::Create(resumed_sgd, communicator, kLong);
    ASSERT_OK(resumed);
    {
      const torch::NoGradGuard no_grad;
      model.a.copy_(a);
    }
    ASSERT_OK((*resumed)->LoadState(*state));
    ASSERT_OK((*resumed)->BackwardAndPartialUpdate(model.Loss(T({mine}), mine), 3));
    EXPECT_TRUE(Equal(model.a, T({-4}))) << model.a;
    EXPECT_TRUE(Equal(model.b, T({-2 - mine}))) << model.b;
    EXPECT_THAT((*resumed)->LoadState(*state), StatusIs(StatusCode::kFailedPrecondition));
    ASSERT_OK((*resumed)->AverageParameters());
    EXPECT_TRUE(Equal(model.b, T({-4}))) << model.b;
  });
}

TEST(DistributedOptimizer, SparseTopK_SendsTheLargestAndKeepsTheRest) {
  OnEachRank(kRanks, [](Communicator& communicator) {
    Model model(0);
    auto sgd = model.Sgd();
    auto optimizer = DistributedOptimizer::Create(sgd, communicator, kLong);
    ASSERT_OK(optimizer);
    // One of a's six elements is sent, and one of b's four; a is sent alone, because it has more
    // than five elements.
    const auto step = [&](const torch::Tensor& da, float db) {
      return (*optimizer)->BackwardAndSparseUpdate(model.Loss(da, db), 5, 0.1, /*top_k=*/true);
    };
    const bool first = communicator.rank() == 0;
    ASSERT_OK(step(first ? T({1, 8, 2, 0, 0, 0}) : T({4, 0, 0, 0, 0, 3}), 0));
    EXPECT_TRUE(Equal(model.a, -T({2, 4, 0, 0, 0, 0}))) << model.a;
    ASSERT_OK(step(T({0, 0, 0, 0, 0, 0}), 0));
    EXPECT_TRUE(Equal(model.a, -T({2, 4, 1, 0, 0, 1.5}))) << model.a;
    ASSERT_OK(step(T({0, 0, 0, 0, 0, 0}), 0));
    EXPECT_TRUE(Equal(model.a, -T({2.5, 4, 1, 0, 0, 1.5}))) << model.a;
  });
}

TEST(DistributedOptimizer, SparseThreshold_ResidualSurvivesACheckpoint) {
  OnEachRank(kRanks, [](Communicator& communicator) {
    Model model(0);
    auto sgd = model.Sgd();
    auto optimizer = DistributedOptimizer::Create(sgd, communicator, kLong);
    ASSERT_OK(optimizer);
    // By default elements of at least 0.05 are sent.
    ASSERT_OK((*optimizer)->BackwardAndSparseUpdate(model.Loss(T({0.03125f}), 0.0625f)));
    EXPECT_TRUE(Equal(model.a, T({0}))) << model.a;
    EXPECT_TRUE(Equal(model.b, T({-0.0625f}))) << model.b;
    const auto state = (*optimizer)->SaveState();
    ASSERT_OK(state);
    for (const bool with_state : {false, true}) {
      auto resumed = DistributedOptimizer::Create(sgd, communicator, kLong);
      ASSERT_OK(resumed);
      if (with_state) {
        ASSERT_OK((*resumed)->LoadState(*state));
      }
      ASSERT_OK((*resumed)->BackwardAndSparseUpdate(model.Loss(T({0.03125f}), 0)));
      EXPECT_TRUE(Equal(model.a, T({with_state ? -0.0625f : 0.0f}))) << model.a;
    }
    // Without correction no residual is kept.
    const torch::Tensor before = model.a.detach().clone();
    auto without = DistributedOptimizer::Create(sgd, communicator, kLong);
    ASSERT_OK(without);
    for (int step = 0; step < 3; ++step) {
      ASSERT_OK((*without)->BackwardAndSparseUpdate(model.Loss(T({0.03125f}), 0),
                                                    hooks::kFusionThreshold, 0.05, /*top_k=*/false,
                                                    /*correct=*/false));
    }
    EXPECT_TRUE(Equal(model.a, before)) << model.a;
  });
}

TEST(DistributedOptimizer, AnUnusedParameterCountsAsZero) {
  OnEachRank(kRanks, [](Communicator& communicator) {
    Model model(0);
    auto sgd = model.Sgd();
    auto optimizer = DistributedOptimizer::Create(sgd, communicator, kLong);
    ASSERT_OK(optimizer);
    const torch::Tensor loss =
        communicator.rank() == 0 ? (model.a * 2).sum() : model.Loss(T({2}), 6);
    ASSERT_OK((*optimizer)->BackwardAndUpdate(loss));
    EXPECT_TRUE(Equal(model.a, T({-2}))) << model.a;
    EXPECT_TRUE(Equal(model.b, T({-3}))) << model.b;
  });
}

// Weight decay changes every parameter that has a gradient, even one of zero.
TEST(DistributedOptimizer, FrozenParametersAreBroadcastAndThenLeftAlone) {
  OnEachRank(kRanks, [](Communicator& communicator) {
    Model model(1.0f + communicator.rank());
    model.b.set_requires_grad(false);
    torch::optim::SGD sgd({model.b, model.a}, torch::optim::SGDOptions(1).weight_decay(0.5));
    auto optimizer = DistributedOptimizer::Create(sgd, communicator, kLong);
    ASSERT_OK(optimizer);
    EXPECT_TRUE(Equal(model.b, T({1}))) << "rank 0's values: " << model.b;
    const auto loss = [&] { return model.Loss(T({1}), 1); };
    ASSERT_OK((*optimizer)->BackwardAndUpdate(loss()));
    ASSERT_OK((*optimizer)->BackwardAndUpdateHalf(loss()));
    ASSERT_OK((*optimizer)->BackwardAndSparseUpdate(loss()));
    ASSERT_OK((*optimizer)->BackwardAndPartialUpdate(loss()));
    EXPECT_TRUE(Equal(model.b, T({1}))) << model.b;
    EXPECT_FALSE(model.b.grad().defined());
    // Each step computes a - (1 + a / 2).
    EXPECT_TRUE(Equal(model.a, T({-1.8125f}))) << model.a;
  });
}

TEST(DistributedOptimizer, ParametersThatAreFrozenOnOneRankOnly) {
  OnEachRank(kRanks, [](Communicator& communicator) {
    Model model(0);
    model.b.set_requires_grad(communicator.rank() == 0);
    auto sgd = model.Sgd();
    EXPECT_THAT(DistributedOptimizer::Create(sgd, communicator, kLong).status(),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("kept as frozen")));
  });
}

TEST(DistributedOptimizer, AnOptimizerThatChangedIsSaid) {
  struct Change {
    std::string says;
    std::function<void(Model&, torch::optim::SGD&)> make;
  };
  const std::vector<Change> changes = {
      {"parameter 1 of the optimizer was thawed",
       [](Model& model, auto&) { model.b.set_requires_grad(true); }},
      {"parameter 0 of the optimizer was frozen",
       [](Model& model, auto&) { model.a.set_requires_grad(false); }},
      {"parameter 2 of the optimizer was added",
       [](Model&, auto& sgd) {
         const std::vector<torch::Tensor> more = {torch::ones({3}).set_requires_grad(true)};
         sgd.add_param_group(torch::optim::OptimizerParamGroup(more));
       }},
      {"parameter 1 of the optimizer was taken out",
       [](Model&, auto& sgd) { sgd.param_groups().front().params().pop_back(); }},
  };
  for (const Change& change : changes) {
    OnEachRank(kRanks, [&](Communicator& communicator) {
      Model model(0);
      model.b.set_requires_grad(false);
      auto sgd = model.Sgd();
      auto optimizer = DistributedOptimizer::Create(sgd, communicator, kLong);
      ASSERT_OK(optimizer);
      ASSERT_OK((*optimizer)->BackwardAndUpdate(model.Loss(T({1}), 1)));
      change.make(model, sgd);
      const torch::Tensor loss = model.Loss(T({1}), 1);
      EXPECT_THAT((*optimizer)->BackwardAndUpdate(loss),
                  StatusIs(StatusCode::kFailedPrecondition, HasSubstr(change.says)));
    });
  }
}

TEST(DistributedOptimizer, AFailedBackwardPassIsSeenByAllRanks) {
  OnEachRank(kRanks, [](Communicator& communicator) {
    Model model(0);
    auto sgd = model.Sgd();
    auto optimizer = DistributedOptimizer::Create(sgd, communicator, kLong);
    ASSERT_OK(optimizer);
    if (communicator.rank() == 0) {
      // The loss is not a scalar.
      EXPECT_THAT((*optimizer)->BackwardAndUpdate(model.a * 2),
                  StatusIs(StatusCode::kInternal, HasSubstr("backward pass")));
    } else {
      EXPECT_FALSE((*optimizer)->BackwardAndUpdate(model.Loss(T({1}), 1)).ok());
    }
    EXPECT_FALSE((*optimizer)->BackwardAndUpdate(model.Loss(T({1}), 1)).ok()) << "it stays failed";
  });
}

// The first of two ranks, of which the other never joins a reduction. A pending operation ends when
// a call that must not return before it has returned, or after a while.
class LateCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::shared_ptr<Work> Broadcast(Buffer, int) override { return FinishedWork(OkStatus()); }
  std::shared_ptr<Work> AllGather(Buffer, Buffer) override { return FinishedWork(OkStatus()); }
  std::shared_ptr<Work> Barrier() override { return FinishedWork(OkStatus()); }
  std::shared_ptr<Work> AllReduce(Buffer, Reduction) override { return work_; }
  // Is called by the caller, and by the hook's thread, which uses its buffer until it returns.
  void Abort() override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (std::this_thread::get_id() == caller_) {
      if (!work_->done()) work_->Complete(AbortedError("aborted"), std::chrono::nanoseconds(0));
      return;
    }
    came_back_first_ =
        changed_.wait_for(lock, std::chrono::milliseconds(300), [this] { return came_back_; });
    ended_ = true;
  }
  void CameBack() {
    const std::lock_guard<std::mutex> lock(mutex_);
    came_back_ = true;
    changed_.notify_all();
    EXPECT_TRUE(ended_);
  }
  bool came_back_first() const { return came_back_first_; }

 private:
  const std::thread::id caller_ = std::this_thread::get_id();
  const std::shared_ptr<Work> work_ = std::make_shared<Work>();
  std::mutex mutex_;
  std::condition_variable changed_;
  bool came_back_ = false, came_back_first_ = false, ended_ = false;
};

TEST(DistributedOptimizer, WhatIsLateHasEndedWhenTheCallComesBack) {
  LateCommunicator communicator;
  Model model(0);
  auto sgd = model.Sgd();
  auto optimizer = DistributedOptimizer::Create(sgd, communicator, std::chrono::milliseconds(20));
  ASSERT_OK(optimizer);
  EXPECT_THAT((*optimizer)->BackwardAndUpdate(model.Loss(T({1}), 1), /*threshold=*/0),
              StatusIs(StatusCode::kDeadlineExceeded));
  communicator.CameBack();
  optimizer->reset();
  EXPECT_FALSE(communicator.came_back_first());
}

TEST(DistributedOptimizer, BadArgumentsAreRefused) {
  OnEachRank(kRanks, [](Communicator& communicator) {
    Model model(0);
    auto sgd = model.Sgd();
    auto optimizer = DistributedOptimizer::Create(sgd, communicator, kLong);
    ASSERT_OK(optimizer);
    EXPECT_THAT((*optimizer)->BackwardAndSparseUpdate(model.Loss(T({1}), 1), 5, 0.0, true),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("more than 0")));
  });
}

// Returns the model's values after a step of each way to synchronize.
std::vector<torch::Tensor> StepsOfEveryKind(bool on_device, const ConnectDevice& connect) {
  std::vector<torch::Tensor> values;
  OnEachRank(kRanks, [&](Communicator& communicator) {
    const torch::Device device =
        on_device ? pretend::Device(communicator.rank()) : torch::Device(torch::kCPU);
    torch::Tensor weight = torch::full({3, 4}, 1.0f + communicator.rank(), device);
    weight.set_requires_grad(true);
    torch::optim::SGD sgd(std::vector<torch::Tensor>{weight}, torch::optim::SGDOptions(0.5));
    auto optimizer = DistributedOptimizer::Create(sgd, communicator, kLong, connect);
    ASSERT_OK(optimizer);
    const auto loss = [&](float factor) {
      const torch::Tensor input = torch::arange(12, torch::kFloat32).view({3, 4}).to(device);
      return (weight * input * (factor + communicator.rank())).sum();
    };
    const auto keep = [&] {
      if (communicator.rank() == 0) values.push_back(weight.detach().cpu().clone());
    };
    ASSERT_OK((*optimizer)->BackwardAndUpdate(loss(1)));
    keep();
    ASSERT_OK((*optimizer)->BackwardAndUpdateHalf(loss(0.1f)));
    keep();
    ASSERT_OK(
        (*optimizer)->BackwardAndUpdateHalf(loss(0.1f), /*threshold=*/2, /*clipping=*/true, 0.5));
    keep();
    ASSERT_OK((*optimizer)->BackwardAndSparseUpdate(loss(3), hooks::kFusionThreshold, 0.5, true));
    keep();
    ASSERT_OK((*optimizer)->BackwardAndPartialUpdate(loss(2)));
    keep();
    ASSERT_OK((*optimizer)->AverageParameters());
    keep();
  });
  return values;
}

class DistributedOptimizerOnADevice : public ::testing::TestWithParam<ConnectDevice> {};

INSTANTIATE_TEST_SUITE_P(Through, DistributedOptimizerOnADevice,
                         ::testing::Values(ConnectDevice(),
                                           ConnectDevice(pretend::ConnectPretendDevices)),
                         [](const ::testing::TestParamInfo<ConnectDevice>& info) {
                           return info.param == nullptr ? "TheHost" : "ItsOwnCommunicator";
                         });

TEST_P(DistributedOptimizerOnADevice, DoesWhatItDoesOnTheHost) {
  const std::vector<torch::Tensor> host = StepsOfEveryKind(false, GetParam());
  const std::vector<torch::Tensor> device = StepsOfEveryKind(true, GetParam());
  ASSERT_EQ(host.size(), 6u);
  ASSERT_EQ(device.size(), host.size());
  for (size_t i = 0; i < host.size(); ++i) {
    EXPECT_TRUE(host[i].equal(device[i])) << host[i] << " and " << device[i];
  }
}

// Covers a parameter that the loss does not use, and the bytes that the device sent.
TEST(DistributedOptimizerWithItsOwnCommunicator, AveragesZerosForWhatIsNotUsed) {
  OnEachRank(kRanks, [](Communicator& communicator) {
    const torch::Device device = pretend::Device(communicator.rank());
    torch::Tensor used = torch::ones({4}, device), unused = torch::ones({2}, device);
    used.set_requires_grad(true);
    unused.set_requires_grad(true);
    torch::optim::SGD sgd(std::vector<torch::Tensor>{used, unused}, torch::optim::SGDOptions(0.5));
    auto optimizer =
        DistributedOptimizer::Create(sgd, communicator, kLong, pretend::ConnectPretendDevices);
    ASSERT_OK(optimizer);
    for (int step = 1; step <= 3; ++step) {
      const bool both = step == 2;
      torch::Tensor loss = (used * (1.0f + communicator.rank())).sum();
      if (both && communicator.rank() == 1) loss = loss + unused.sum();
      ASSERT_OK((*optimizer)->BackwardAndUpdate(loss));
    }
    EXPECT_TRUE(used.detach().cpu().equal(torch::full({4}, 1 - 3 * 0.5f * 1.5f)));
    EXPECT_TRUE(unused.detach().cpu().equal(torch::full({2}, 0.75f)));
    EXPECT_EQ((*optimizer)->bytes_given(), 3 * 6 * sizeof(float));
  });
}

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

std::vector<torch::Tensor> Parameters() {
  std::vector<torch::Tensor> parameters;
  for (const int64_t count : {1, 7, 300}) {
    parameters.push_back(
        (torch::arange(count * 3, torch::kFloat32) * 0.7).sin().view({count, 3}).requires_grad_());
  }
  parameters.push_back(torch::ones({5}, torch::kFloat64).requires_grad_());
  return parameters;
}

// The last two parameters have no gradient in every other step.
void FillGradients(const std::vector<torch::Tensor>& parameters, int step) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    torch::Tensor& grad = parameters[i].mutable_grad();
    grad = torch::Tensor();
    if (i >= 2 && step % 2 == 1) continue;
    grad = (parameters[i].detach() * (step + 1) + static_cast<double>(i)).cos();
  }
}

void ExpectClose(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::allclose(a[i], b[i], 1e-6, 1e-6)) << i << ": " << a[i] << " and " << b[i];
  }
}

template <typename Class>
struct Kind {
  using Optimizer = Class;
};

template <typename Plain, typename Fused, typename Options>
void ExpectSameSteps(const Options& first, const Options& second) {
  const auto train = [&](auto kind, const std::vector<torch::Tensor>& parameters) {
    using Optimizer = typename decltype(kind)::Optimizer;
    Groups groups;
    groups.emplace_back(std::vector<torch::Tensor>(parameters.begin(), parameters.begin() + 2),
                        std::make_unique<Options>(first));
    groups.emplace_back(std::vector<torch::Tensor>(parameters.begin() + 2, parameters.end()),
                        std::make_unique<Options>(second));
    Optimizer optimizer(groups, first);
    for (int step = 0; step < 20; ++step) {
      FillGradients(parameters, step);
      optimizer.step();
    }
  };
  const auto plain = Parameters(), fused = Parameters();
  train(Kind<Plain>(), plain);
  train(Kind<Fused>(), fused);
  ExpectClose(plain, fused);
}

TEST(FusedAdam, StepsAsAdam) {
  ExpectSameSteps<torch::optim::Adam, FusedAdam>(AdamOptions(1e-2),
                                                 AdamOptions(1e-1).weight_decay(0.1));
  ExpectSameSteps<torch::optim::Adam, FusedAdam>(AdamOptions(1e-2).amsgrad(true).eps(1e-4),
                                                 AdamOptions(0).betas({0.5, 0.6}));
}

TEST(FusedAdamW, StepsAsAdamW) {
  ExpectSameSteps<torch::optim::AdamW, FusedAdamW>(AdamWOptions(1e-2),
                                                   AdamWOptions(1e-1).weight_decay(0.1));
  ExpectSameSteps<torch::optim::AdamW, FusedAdamW>(AdamWOptions(1e-2).amsgrad(true),
                                                   AdamWOptions(0));
}

// Each optimizer goes on with the state that the other saved.
TEST(FusedAdam, ItsStateIsAdams) {
  const auto expected = Parameters(), parameters = Parameters();
  torch::optim::Adam whole(expected, AdamOptions(1e-2));
  std::stringstream saved;
  {
    FusedAdam first(parameters, AdamOptions(1e-2));
    for (int step = 0; step < 4; ++step) {
      FillGradients(parameters, step);
      first.step();
    }
    torch::save(first, saved);
  }
  torch::optim::Adam second(parameters, AdamOptions(1e-2));
  torch::load(second, saved);
  for (int step = 0; step < 8; ++step) {
    FillGradients(expected, step);
    whole.step();
    if (step < 4) continue;
    FillGradients(parameters, step);
    second.step();
  }
  ExpectClose(expected, parameters);
  FusedAdam fused(parameters);
  EXPECT_EQ(KindOf(fused), KindOf(second));
}

TEST(FusedAdam, GivesTheClosuresLoss) {
  const auto parameters = Parameters();
  FusedAdam adam(parameters);
  const torch::Tensor loss = adam.step([&] {
    adam.zero_grad();
    torch::Tensor loss = parameters[0].pow(2).sum();
    loss.backward();
    return loss;
  });
  EXPECT_GT(loss.item<float>(), 0);
  EXPECT_TRUE(parameters[0].grad().defined());
}

TEST(FusedAdam, LetsAutogradNoticeThatItStepped) {
  torch::Tensor parameter = torch::ones({3}).requires_grad_();
  FusedAdam adam(std::vector<torch::Tensor>{parameter});
  const torch::Tensor loss = parameter.pow(3).sum();
  parameter.mutable_grad() = torch::ones({3});
  adam.step();
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(FusedAdam, SaysOfSparseGradientsWhatAdamSays) {
  const torch::Tensor parameter = torch::ones({4, 2}).requires_grad_();
  parameter.mutable_grad() = torch::ones({4, 2}).to_sparse();
  FusedAdam adam(std::vector<torch::Tensor>{parameter});
  EXPECT_THROW(adam.step(), c10::Error);
}

}  // namespace

}  // namespace cadre::nn
