// What the reducer does about gradients that become infinite in a hook, and nowhere else.
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/hooks/sixteen_bit.h"
#include "cadre/reducer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/testing/reducer_rig.h"

namespace cadre {
namespace {

using testing::Floats;
using testing::kLong;
using testing::MarkAll;
using testing::Model;
using testing::OnEachRank;
using testing::Small;

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A float holds it, and 16 bits do not.
constexpr float kTooMuch = 70000;

// One rank's model of two parameters, whose gradients go through Fp16Hook.
class Trained {
 public:
  Trained(Communicator& communicator, NonFinite non_finite) {
    ReducerOptions options = Small();
    options.hook = hooks::Fp16Hook();
    options.non_finite = non_finite;
    auto reducer = Reducer::Create(communicator, model_.parameters(), options);
    EXPECT_OK(reducer);
    if (reducer.ok()) reducer_ = *std::move(reducer);
  }
  Reducer& operator*() { return *reducer_; }
  Reducer* operator->() { return reducer_.get(); }
  // A step in which all gradients are `value`.
  Result<StepReport> Step(float value) {
    EXPECT_OK(reducer_->BeginStep());
    MarkAll(*reducer_, value);
    return reducer_->Finish(kLong);
  }

 private:
  Model model_{{3, 200}, 0};
  std::unique_ptr<Reducer> reducer_;
};

TEST(ReducerHooks, WhatAHookMadeInfiniteIsAnErrorInItsStep) {
  for (const int ranks : {1, 2}) {
    OnEachRank(ranks, [](Communicator& communicator) {
      Trained trained(communicator, NonFinite::kError);
      ASSERT_OK(trained.Step(1));
      ASSERT_OK(trained->BeginStep());
      std::vector<float> gradient(200, 1);
      if (communicator.rank() == 0) gradient[150] = kTooMuch;
      ASSERT_OK(trained->MarkReady(1, gradient.data()));
      ASSERT_OK(trained->MarkReady(0));
      EXPECT_THAT(
          trained->Finish(kLong),
          StatusIs(StatusCode::kOutOfRange,
                   AllOf(HasSubstr("'p1' is not finite in step 2 after the communication hook"),
                         HasSubstr("of all ranks were finite before it"))));
    });
  }
}

TEST(ReducerHooks, WhatAHookMadeInfiniteIsSkippedOnAllRanks) {
  OnEachRank(2, [](Communicator& communicator) {
    Trained trained(communicator, NonFinite::kSkip);
    for (int step = 1; step <= 4; ++step) {
      const auto report = trained.Step(communicator.rank() == 1 && step == 2 ? kTooMuch : 1);
      ASSERT_OK(report);
      EXPECT_EQ(report->skipped, step == 2);
      EXPECT_EQ(report->reason.find("'p0' is not finite in step 2 after") == std::string::npos,
                step != 2)
          << report->reason;
    }
    EXPECT_THAT(Floats(trained->Gradient(0)), Each(1.0f));
  });
}

TEST(ReducerHooks, WhatARankBroughtIsItsOwn) {
  OnEachRank(2, [](Communicator& communicator) {
    Trained trained(communicator, NonFinite::kError);
    EXPECT_THAT(trained.Step(communicator.rank() == 1 ? INFINITY : kTooMuch),
                StatusIs(StatusCode::kOutOfRange,
                         AllOf(HasSubstr("on rank 1 of 'p"), Not(HasSubstr("hook")))));
  });
}

// What the skipped step left in the place of a gradient that nobody has now is no reason.
TEST(ReducerHooks, WhatNoRankUsedIsNotLookedAt) {
  OnEachRank(2, [](Communicator& communicator) {
    Trained trained(communicator, NonFinite::kSkip);
    auto report = trained.Step(kTooMuch);
    ASSERT_OK(report);
    EXPECT_TRUE(report->skipped);
    ASSERT_OK(trained->BeginStep());
    testing::Fill(*trained, 1, 2);
    ASSERT_OK(trained->MarkReady(1));
    report = trained->Finish(kLong);
    ASSERT_OK(report);
    EXPECT_FALSE(report->skipped) << report->reason;
    EXPECT_THAT(Floats(trained->Gradient(1)), Each(2.0f));
  });
}

TEST(ReducerHooks, NobodyLooksWhereItIsIgnored) {
  OnEachRank(2, [](Communicator& communicator) {
    Trained trained(communicator, NonFinite::kIgnore);
    const auto report = trained.Step(kTooMuch);
    ASSERT_OK(report);
    EXPECT_FALSE(report->skipped);
    EXPECT_THAT(report->reason, IsEmpty());
    EXPECT_THAT(Floats(trained->Gradient(0)), Each(INFINITY));
  });
}

}  // namespace
}  // namespace cadre
