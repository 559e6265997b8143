#include "cadre/torch/distributed_optimizer.h"

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/optim/adam.h"
#include "torch/optim/sgd.h"
#include "worker_runtime/torch/ranks_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 2;

// Two parameters whose gradients are whatever one wants.
struct Model {
  explicit Model(float value)
      : a(torch::full({6}, value).set_requires_grad(true)),
        b(torch::full({2, 2}, value).set_requires_grad(true)) {}

  // With a learning rate of 1, so that a step subtracts the gradient.
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
    // Groups, in reverse order: b, then a.
    ASSERT_OK((*optimizer)->BackwardAndPartialUpdate(model.Loss(T({mine}), mine), 3));
    EXPECT_TRUE(Equal(model.a, T({-mine}))) << model.a;
    EXPECT_TRUE(Equal(model.b, T({-2}))) << model.b;
    const auto state = (*optimizer)->SaveState();
    ASSERT_OK(state);
    // As after a restart.
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
    // One of a's six, one of b's four; a alone, because it has more than five elements.
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
    // The default: elements from 0.05.
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
    // Without correction there is no residual to wait for.
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

// Weight decay changes what has a gradient, also one of zero.
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
    // Each step: a - (1 + a / 2).
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
      {"parameter 2 of the optimizer came",
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
      // Not a scalar.
      EXPECT_THAT((*optimizer)->BackwardAndUpdate(model.a * 2),
                  StatusIs(StatusCode::kInternal, HasSubstr("backward pass")));
    } else {
      EXPECT_FALSE((*optimizer)->BackwardAndUpdate(model.Loss(T({1}), 1)).ok());
    }
    EXPECT_FALSE((*optimizer)->BackwardAndUpdate(model.Loss(T({1}), 1)).ok()) << "it stays failed";
  });
}

// The first of two ranks, of which the other never comes to a reduction. What it has under way ends
// when a call came back that was not to come back before, or after a while.
class LateCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::shared_ptr<Work> Broadcast(Buffer, int) override { return FinishedWork(OkStatus()); }
  std::shared_ptr<Work> AllGather(Buffer, Buffer) override { return FinishedWork(OkStatus()); }
  std::shared_ptr<Work> Barrier() override { return FinishedWork(OkStatus()); }
  std::shared_ptr<Work> AllReduce(Buffer, Reduction) override { return work_; }
  // By the caller, and by the hook's thread, which has its buffer until it returns.
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

}  // namespace
}  // namespace cadre::nn
