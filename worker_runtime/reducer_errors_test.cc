// The reducer's errors when ranks do not agree, do not come, or do what they must not.
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"
#include "cadre/hooks/sixteen_bit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/progress/progress_page.h"
#include "worker_runtime/reduce/step_tail.h"
#include "worker_runtime/testing/reducer_rig.h"

namespace cadre {
namespace {

using testing::kLong;
using testing::MarkAll;
using testing::Model;
using testing::OnEachRank;
using testing::Small;

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(Reducer, NamesTheRankWhoseGradientIsNotFinite) {
  OnEachRank(3, [](Communicator& communicator) {
    Model model({3, 200}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), Small());
    ASSERT_OK(reducer);
    ASSERT_OK((*reducer)->BeginStep());
    MarkAll(**reducer, 1);
    ASSERT_OK((*reducer)->Finish(kLong));
    ASSERT_OK((*reducer)->BeginStep());
    std::vector<float> gradient(200, 1);
    if (communicator.rank() == 1) gradient[150] = -INFINITY;
    ASSERT_OK((*reducer)->MarkReady(1, gradient.data()));
    ASSERT_OK((*reducer)->MarkReady(0));
    EXPECT_THAT(
        (*reducer)->Finish(kLong),
        StatusIs(StatusCode::kOutOfRange, HasSubstr("not finite in step 2: on rank 1 of 'p1'")));
  });
}

TEST(Reducer, NamesTheReplicaThatDrifted) {
  OnEachRank(3, [](Communicator& communicator) {
    Model model({4, 4}, 1);
    ReducerOptions options = Small();
    options.fingerprint_every = 2;
    auto reducer = Reducer::Create(communicator, model.parameters(), options);
    ASSERT_OK(reducer);
    for (int step = 1; step <= 3; ++step) {
      ASSERT_OK((*reducer)->BeginStep());
      MarkAll(**reducer, 1);
      ASSERT_OK((*reducer)->Finish(kLong)) << step;
    }
    if (communicator.rank() == 2) model.values[1][3] = 1.0000001f;
    ASSERT_OK((*reducer)->BeginStep());
    MarkAll(**reducer, 1);
    EXPECT_THAT(
        (*reducer)->Finish(kLong),
        StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("before step 4 on rank 2"),
                                              HasSubstr("'p1' differs from rank 0's on rank 2"))));
  });
}

TEST(Reducer, SaysWhereTheRanksAreWhenOneDoesNotCome) {
  std::string directory = ::testing::TempDir() + "/reducer_XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  absl::Notification gave_up;
  OnEachRank(2, [&](Communicator& communicator) {
    Model model({4}, 0);
    ReducerOptions options = Small();
    auto page = progress::ProgressPage::Create(directory, {1, communicator.rank(), 2});
    ASSERT_OK(page);
    options.page = *std::move(page);
    auto reducer = Reducer::Create(communicator, model.parameters(), options);
    ASSERT_OK(reducer);
    ASSERT_OK((*reducer)->BeginStep());
    if (communicator.rank() == 1) {
      gave_up.WaitForNotification();
      return;
    }
    ASSERT_OK((*reducer)->MarkReady(0));
    // Until the other one has begun its step too.
    while (options.page->DescribeAll().find("step 1, is in the forward pass") ==
           std::string::npos) {
      std::this_thread::yield();
    }
    EXPECT_THAT((*reducer)->Finish(std::chrono::milliseconds(50)),
                StatusIs(StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr("rank 0, step 1, bucket 0 of 1 (p0)"),
                               ContainsRegex("rank 0 .*: step 1, waits for bucket 0"),
                               ContainsRegex("rank 1 .*: step 1, is in the forward pass"))));
    gave_up.Notify();
  });
  std::filesystem::remove_all(directory);
}

TEST(Reducer, RefusesTheSameGradientTwice) {
  OnEachRank(1, [](Communicator& communicator) {
    Model model({2, 2}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), Small());
    ASSERT_OK(reducer);
    ASSERT_OK((*reducer)->BeginStep());
    ASSERT_OK((*reducer)->MarkReady(1));
    EXPECT_THAT((*reducer)->MarkReady(1), StatusIs(StatusCode::kFailedPrecondition,
                                                   HasSubstr("'p1' became ready twice in step 1")));
  });
}

TEST(Reducer, RefusesAGradientOutsideAStep) {
  OnEachRank(1, [](Communicator& communicator) {
    Model model({2}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), Small());
    ASSERT_OK(reducer);
    EXPECT_THAT((*reducer)->MarkReady(0),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("outside a step")));
  });
}

TEST(Reducer, NamesTheParameterOnWhichRanksDisagree) {
  OnEachRank(3, [](Communicator& communicator) {
    Model model({4, communicator.rank() == 2 ? size_t{9} : size_t{8}}, 0);
    EXPECT_THAT(Reducer::Create(communicator, model.parameters(), Small()),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("'p1' float32 with 9 elements on rank 2"),
                               HasSubstr("'p1' float32 with 8 elements on rank 0"))));
  });
}

TEST(Reducer, NoticesEqualParametersInAnotherOrder) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({4, 4}, 0);
    if (communicator.rank() == 1) std::swap(model.names[0], model.names[1]);
    EXPECT_THAT(Reducer::Create(communicator, model.parameters(), Small()),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("parameter 0 is 'p1'")));
  });
}

TEST(Reducer, NamesAParameterThatOnlyOneRankHas) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({4, 4}, 0);
    auto parameters = model.parameters();
    if (communicator.rank() == 1) parameters.pop_back();
    EXPECT_THAT(
        Reducer::Create(communicator, parameters, Small()),
        StatusIs(StatusCode::kInvalidArgument,
                 HasSubstr("rank 1 has 1 parameters but rank 0 has 2; only rank 0 has 'p1'")));
  });
}

TEST(Reducer, NamesTheOptionInWhichRanksDiffer) {
  OnEachRank(3, [](Communicator& communicator) {
    Model model({4}, 0);
    ReducerOptions options = Small();
    if (communicator.rank() == 2) options.non_finite = NonFinite::kSkip;
    EXPECT_THAT(Reducer::Create(communicator, model.parameters(), options),
                StatusIs(StatusCode::kInvalidArgument,
                         HasSubstr("rank 2 has ReducerOptions::non_finite kSkip, rank 0 has "
                                   "ReducerOptions::non_finite kError; all ranks must")));
    options = Small();
    if (communicator.rank() == 1) options.hook = hooks::Fp16Hook();
    if (communicator.rank() == 2) options.hook = hooks::Bf16Hook();
    EXPECT_THAT(
        Reducer::Create(communicator, model.parameters(), options),
        StatusIs(StatusCode::kInvalidArgument,
                 HasSubstr("hook cadre::hooks::SixteenBitHook (float16, then the average), rank "
                           "0 has ReducerOptions::hook none")));
  });
}

TEST(Reducer, RefusesTypesThatCannotBeAveraged) {
  OnEachRank(1, [](Communicator& communicator) {
    std::vector<int64_t> values(3);
    EXPECT_THAT(Reducer::Create(communicator, {{"steps", {values.data(), 3, DataType::kInt64}, {}}},
                                Small()),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("'steps' is int64")));
  });
}

TEST(Reducer, ARankThatNeverComesEndsTheStepOfTheOthers) {
  absl::Notification gave_up;
  OnEachRank(2, [&](Communicator& communicator) {
    Model model({4}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), Small());
    ASSERT_OK(reducer);
    ASSERT_OK((*reducer)->BeginStep());
    if (communicator.rank() == 1) {
      gave_up.WaitForNotification();
      return;
    }
    ASSERT_OK((*reducer)->MarkReady(0));
    EXPECT_THAT((*reducer)->Finish(std::chrono::milliseconds(50)),
                StatusIs(StatusCode::kDeadlineExceeded,
                         AllOf(HasSubstr("step 1"), HasSubstr("bucket 0 of 1 (p0)"))));
    gave_up.Notify();
  });
}

TEST(Reducer, ARankThatNeverComesEndsTheConstructionOfTheOthers) {
  absl::Notification gave_up;
  OnEachRank(2, [&](Communicator& communicator) {
    Model model({4}, 0);
    if (communicator.rank() == 1) {
      gave_up.WaitForNotification();
      return;
    }
    ReducerOptions options = Small();
    options.timeout = std::chrono::milliseconds(50);
    EXPECT_FALSE(Reducer::Create(communicator, model.parameters(), options).ok());
    // Rank 0 broadcasts without waiting for the others, so it may get as far as to the first
    // collective that needs them; whichever it was, none of its buffers is in use any more.
    gave_up.Notify();
  });
}

TEST(CheckEqualValues, NamesTheParameterAndTheRank) {
  OnEachRank(3, [](Communicator& communicator) {
    Model model({4, 4}, 1);
    const auto hash = CheckEqualValues(communicator, model.parameters(), kLong);
    ASSERT_OK(hash);
    EXPECT_NE(*hash, 0u);
    if (communicator.rank() == 2) model.values[1][3] = 1.0000001f;
    EXPECT_THAT(CheckEqualValues(communicator, model.parameters(), kLong),
                StatusIs(StatusCode::kDataLoss, HasSubstr("'p1' differs from rank 0's on rank 2")));
  });
}

}  // namespace
}  // namespace cadre
