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

ReducerOptions With(NonFinite non_finite) {
  ReducerOptions options = Small();
  options.hook = hooks::Fp16Hook();
  options.non_finite = non_finite;
  return options;
}

TEST(ReducerHooks, WhatAHookMadeInfiniteIsAnErrorInItsStep) {
  for (const int ranks : {1, 2}) {
    OnEachRank(ranks, [](Communicator& communicator) {
      Model model({3, 200}, 0);
      auto reducer = Reducer::Create(communicator, model.parameters(), With(NonFinite::kError));
      ASSERT_OK(reducer);
      ASSERT_OK((*reducer)->BeginStep());
      MarkAll(**reducer, 1);
      ASSERT_OK((*reducer)->Finish(kLong));
      ASSERT_OK((*reducer)->BeginStep());
      std::vector<float> gradient(200, 1);
      if (communicator.rank() == 0) gradient[150] = kTooMuch;
      ASSERT_OK((*reducer)->MarkReady(1, gradient.data()));
      ASSERT_OK((*reducer)->MarkReady(0));
      EXPECT_THAT(
          (*reducer)->Finish(kLong),
          StatusIs(StatusCode::kOutOfRange,
                   AllOf(HasSubstr("'p1' is not finite in step 2 after the communication hook"),
                         HasSubstr("of all ranks were finite before it"))));
    });
  }
}

TEST(ReducerHooks, WhatAHookMadeInfiniteIsSkippedOnAllRanks) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({3, 200}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), With(NonFinite::kSkip));
    ASSERT_OK(reducer);
    for (int step = 1; step <= 4; ++step) {
      ASSERT_OK((*reducer)->BeginStep());
      MarkAll(**reducer, communicator.rank() == 1 && step == 2 ? kTooMuch : 1);
      const auto report = (*reducer)->Finish(kLong);
      ASSERT_OK(report);
      EXPECT_EQ(report->skipped, step == 2);
      EXPECT_EQ(report->reason.find("'p0' is not finite in step 2 after") == std::string::npos,
                step != 2)
          << report->reason;
    }
    EXPECT_THAT(Floats((*reducer)->Gradient(0)), Each(1.0f));
  });
}

TEST(ReducerHooks, WhatARankBroughtIsItsOwn) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({3, 200}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), With(NonFinite::kError));
    ASSERT_OK(reducer);
    ASSERT_OK((*reducer)->BeginStep());
    MarkAll(**reducer, communicator.rank() == 1 ? INFINITY : kTooMuch);
    EXPECT_THAT((*reducer)->Finish(kLong),
                StatusIs(StatusCode::kOutOfRange,
                         AllOf(HasSubstr("on rank 1 of 'p"), Not(HasSubstr("hook")))));
  });
}

// What the skipped step left in the place of a gradient that nobody has now is no reason.
TEST(ReducerHooks, WhatNoRankUsedIsNotLookedAt) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({3, 200}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), With(NonFinite::kSkip));
    ASSERT_OK(reducer);
    ASSERT_OK((*reducer)->BeginStep());
    MarkAll(**reducer, kTooMuch);
    auto report = (*reducer)->Finish(kLong);
    ASSERT_OK(report);
    EXPECT_TRUE(report->skipped);
    ASSERT_OK((*reducer)->BeginStep());
    testing::Fill(**reducer, 1, 2);
    ASSERT_OK((*reducer)->MarkReady(1));
    report = (*reducer)->Finish(kLong);
    ASSERT_OK(report);
    EXPECT_FALSE(report->skipped) << report->reason;
    EXPECT_THAT(Floats((*reducer)->Gradient(1)), Each(2.0f));
  });
}

TEST(ReducerHooks, NobodyLooksWhereItIsIgnored) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({3, 200}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), With(NonFinite::kIgnore));
    ASSERT_OK(reducer);
    ASSERT_OK((*reducer)->BeginStep());
    MarkAll(**reducer, kTooMuch);
    const auto report = (*reducer)->Finish(kLong);
    ASSERT_OK(report);
    EXPECT_FALSE(report->skipped);
    EXPECT_THAT(report->reason, IsEmpty());
    EXPECT_THAT(Floats((*reducer)->Gradient(0)), Each(INFINITY));
  });
}

}  // namespace
}  // namespace cadre
