#include "cadre/reducer.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/hooks/all_reduce.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/reduce/step_tail.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/testing/reducer_rig.h"

namespace cadre {
namespace {

using testing::Fill;
using testing::Floats;
using testing::kLong;
using testing::MarkAll;
using testing::Model;
using testing::OnEachRank;
using testing::Small;

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Reducer, AveragesOverRanksWhateverTheOrderOfReadiness) {
  OnEachRank(3, [](Communicator& communicator) {
    Model model({5, 1, 300, 17}, communicator.rank());
    auto reducer = Reducer::Create(communicator, model.parameters(), Small());
    ASSERT_OK(reducer);
    for (int step = 0; step < 4; ++step) {
      ASSERT_OK((*reducer)->BeginStep());
      for (size_t k = 0; k < 4; ++k) {
        const size_t i = (k + communicator.rank() + step) % 4;
        Fill(**reducer, i, 10 * i + communicator.rank() + step);
        ASSERT_OK((*reducer)->MarkReady(i));
      }
      const auto report = (*reducer)->Finish(kLong);
      ASSERT_OK(report);
      EXPECT_TRUE(report->synchronized);
      EXPECT_EQ(report->step, step + 1);
      EXPECT_EQ(report->buckets, 4u);
      EXPECT_EQ(report->bytes, (323 + reduce::TailCount(3, 4)) * sizeof(float));
      EXPECT_GT(report->communication, std::chrono::nanoseconds(0));
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_THAT(Floats((*reducer)->Gradient(i)),
                    Each(::testing::FloatNear(10 * i + 1 + step, 1e-4)));
      }
    }
  });
}

TEST(Reducer, StartsEveryoneFromRankZero) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({3, 2}, 1.5f + communicator.rank());
    ASSERT_OK(Reducer::Create(communicator, model.parameters(), Small()));
    EXPECT_THAT(model.values[0], Each(1.5f));
    EXPECT_THAT(model.values[1], Each(1.5f));
  });
}

TEST(Reducer, ReducesWhileTheBackwardPassIsStillRunning) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({4, 4}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), Small());
    ASSERT_OK(reducer);
    ASSERT_OK((*reducer)->BeginStep());
    Fill(**reducer, 1, communicator.rank());
    ASSERT_OK((*reducer)->MarkReady(1));
    // Gradient 0 is not ready, and yet 1 can be awaited: operations run in order, so this one is
    // behind its all-reduce.
    ASSERT_OK(communicator.Barrier()->Wait(kLong));
    EXPECT_THAT(Floats((*reducer)->Gradient(1)), Each(0.5f));
    ASSERT_OK((*reducer)->MarkReady(0));
    ASSERT_OK((*reducer)->Finish(kLong));
  });
}

TEST(Reducer, AdoptsTheReadyOrderOfRankZeroAfterTheFirstStep) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({2, 2, 2}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), Small());
    ASSERT_OK(reducer);
    EXPECT_THAT((*reducer)->buckets(), ElementsAre(ElementsAre(2), ElementsAre(1), ElementsAre(0)));
    const uint64_t layout = (*reducer)->layout();
    ASSERT_OK((*reducer)->BeginStep());
    std::vector<size_t> order = {1, 0, 2};
    if (communicator.rank() == 1) order = {0, 1, 2};
    for (size_t i : order) {
      Fill(**reducer, i, 3.0f + i);
      ASSERT_OK((*reducer)->MarkReady(i));
    }
    ASSERT_OK((*reducer)->Finish(kLong));
    EXPECT_EQ((*reducer)->layout(), layout);
    ASSERT_OK((*reducer)->BeginStep());
    EXPECT_NE((*reducer)->layout(), layout);
    EXPECT_THAT((*reducer)->buckets(), ElementsAre(ElementsAre(1), ElementsAre(0), ElementsAre(2)));
    // Gradients move along.
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_THAT(Floats((*reducer)->Gradient(i)), Each(3.0f + i));
    }
    // Buckets other than rank 0's would add gradients of different parameters.
    for (size_t i = 0; i < 3; ++i) ASSERT_OK((*reducer)->MarkReady(i));
    ASSERT_OK((*reducer)->Finish(kLong));
    EXPECT_THAT(Floats((*reducer)->Gradient(2)), Each(5.0f));
  });
}

TEST(Reducer, TakesAGradientFromElsewhereAndFromAnyThread) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({64, 64, 64, 64}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), Small());
    ASSERT_OK(reducer);
    const std::vector<float> gradient(64, 2.0f * communicator.rank());
    for (int step = 0; step < 3; ++step) {
      ASSERT_OK((*reducer)->BeginStep());
      std::vector<std::thread> threads;
      for (size_t i = 0; i < 4; ++i) {
        threads.emplace_back([&, i] { EXPECT_OK((*reducer)->MarkReady(i, gradient.data())); });
      }
      for (std::thread& thread : threads) thread.join();
      ASSERT_OK((*reducer)->Finish(kLong));
      for (size_t i = 0; i < 4; ++i) EXPECT_THAT(Floats((*reducer)->Gradient(i)), Each(1.0f));
    }
  });
}

TEST(Reducer, AnUnreadyGradientContributesWhatItHolds) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({2, 2, 2}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), Small());
    ASSERT_OK(reducer);
    for (int step = 0; step < 3; ++step) {
      ASSERT_OK((*reducer)->BeginStep());
      Fill(**reducer, 0, 4);
      Fill(**reducer, 1, 5.0f + communicator.rank());
      Fill(**reducer, 2, 0);
      ASSERT_OK((*reducer)->MarkReady(0));
      if (communicator.rank() == 1) {
        Fill(**reducer, 2, 6);
        ASSERT_OK((*reducer)->MarkReady(2));
      }
      const auto report = (*reducer)->Finish(kLong);
      ASSERT_OK(report);
      EXPECT_THAT(report->used, ElementsAre(true, false, true));
      EXPECT_THAT(Floats((*reducer)->Gradient(0)), Each(4.0f));
      EXPECT_THAT(Floats((*reducer)->Gradient(1)), Each(5.0f + communicator.rank()))
          << "no rank had it: it stays";
      EXPECT_THAT(Floats((*reducer)->Gradient(2)), Each(3.0f));
    }
  });
}

TEST(Reducer, WhatWasAccumulatedCountsAsUsed) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({2, 2}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), Small());
    ASSERT_OK(reducer);
    ASSERT_OK((*reducer)->BeginStep(false));
    Fill(**reducer, 1, 2.0f * communicator.rank());
    if (communicator.rank() == 1) {
      ASSERT_OK((*reducer)->MarkReady(1));
    }
    ASSERT_OK((*reducer)->Finish(kLong));
    ASSERT_OK((*reducer)->BeginStep());
    ASSERT_OK((*reducer)->MarkReady(0));
    const auto report = (*reducer)->Finish(kLong);
    ASSERT_OK(report);
    EXPECT_THAT(report->used, ElementsAre(true, true));
    EXPECT_THAT(Floats((*reducer)->Gradient(1)), Each(1.0f));
  });
}

TEST(Reducer, WithAStaticGraphGradientsMayBecomeReadySeveralTimes) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({2, 2, 2}, 0);
    ReducerOptions options = Small();
    options.static_graph = true;
    auto reducer = Reducer::Create(communicator, model.parameters(), options);
    ASSERT_OK(reducer);
    for (int step = 0; step < 3; ++step) {
      ASSERT_OK((*reducer)->BeginStep());
      for (int pass = 1; pass <= 2; ++pass) {
        Fill(**reducer, 0, pass * (1.0f + communicator.rank()));
        ASSERT_OK((*reducer)->MarkReady(0));
      }
      Fill(**reducer, 1, 7);
      ASSERT_OK((*reducer)->MarkReady(1));
      const auto report = (*reducer)->Finish(kLong);
      ASSERT_OK(report);
      EXPECT_THAT(report->used, ElementsAre(true, true, false));
      EXPECT_THAT(Floats((*reducer)->Gradient(0)), Each(3.0f)) << step;
      EXPECT_THAT(Floats((*reducer)->Gradient(1)), Each(7.0f));
    }
    ASSERT_OK((*reducer)->BeginStep());
    ASSERT_OK((*reducer)->MarkReady(0));
    ASSERT_OK((*reducer)->MarkReady(1));
    EXPECT_THAT((*reducer)->Finish(kLong),
                StatusIs(StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("in step 4"), HasSubstr("first step: p0;"))));
    // The first error stays.
    EXPECT_THAT((*reducer)->BeginStep(), StatusIs(StatusCode::kFailedPrecondition));
  });
}

TEST(Reducer, AStaticGraphIsLearntInTheFirstStepWithData) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({2, 2}, 0);
    ReducerOptions options = Small();
    options.static_graph = true;
    auto reducer = Reducer::Create(communicator, model.parameters(), options);
    ASSERT_OK(reducer);
    for (int step = 1; step <= 3; ++step) {
      const bool has_data = step > 1 || communicator.rank() == 0;
      ASSERT_OK((*reducer)->BeginStep(true, has_data ? 1 : 0));
      // The other one is never used.
      Fill(**reducer, 0, 7);
      if (has_data) {
        ASSERT_OK((*reducer)->MarkReady(0));
      }
      const auto report = (*reducer)->Finish(kLong);
      ASSERT_OK(report) << step;
      EXPECT_THAT(report->used, ElementsAre(true, false));
      EXPECT_THAT(Floats((*reducer)->Gradient(0)), Each(7.0f)) << step;
    }
  });
}

TEST(Reducer, RanksCountByTheirWeight) {
  OnEachRank(3, [](Communicator& communicator) {
    Model model({3, 200}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), Small());
    ASSERT_OK(reducer);
    // Rank 0 has no data; what lies in its places does not count.
    const std::vector<double> weights = {0, 10, 30};
    for (int step = 0; step < 3; ++step) {
      ASSERT_OK((*reducer)->BeginStep(true, weights[communicator.rank()]));
      for (size_t i = 0; i < 2; ++i) {
        Fill(**reducer, i, communicator.rank() == 0 ? NAN : 4.0f * communicator.rank());
        if (communicator.rank() > 0) {
          ASSERT_OK((*reducer)->MarkReady(i));
        }
      }
      const auto report = (*reducer)->Finish(kLong);
      ASSERT_OK(report);
      EXPECT_NEAR(report->weight, 40, 1e-4);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_THAT(Floats((*reducer)->Gradient(i)), Each(::testing::FloatNear(7, 1e-5)));
      }
    }
    // Nobody has any: nothing changes.
    Fill(**reducer, 0, 5.0f + communicator.rank());
    ASSERT_OK((*reducer)->BeginStep(true, 0));
    const auto report = (*reducer)->Finish(kLong);
    ASSERT_OK(report);
    EXPECT_EQ(report->weight, 0);
    EXPECT_THAT(Floats((*reducer)->Gradient(0)), Each(5.0f + communicator.rank()));
    EXPECT_THAT((*reducer)->BeginStep(true, -1), StatusIs(StatusCode::kInvalidArgument));
  });
}

// What a hook multiplies by the weight is divided by the sum of the ranks' weights.
TEST(Reducer, RanksCountByTheirWeightWithAHookToo_AlsoARankAlone) {
  for (const int ranks : {1, 2}) {
    OnEachRank(ranks, [ranks](Communicator& communicator) {
      Model model({3, 200}, 0);
      ReducerOptions options = Small();
      options.hook = std::make_shared<hooks::AllReduceHook>();
      auto reducer = Reducer::Create(communicator, model.parameters(), options);
      ASSERT_OK(reducer);
      // 2 alone; with weights 64 and 192, 0.25 * 2 + 0.75 * 6.
      const float expected = ranks == 1 ? 2.0f : 5.0f;
      for (int step = 0; step < 3; ++step) {
        ASSERT_OK((*reducer)->BeginStep(true, communicator.rank() == 0 ? 64 : 192));
        MarkAll(**reducer, communicator.rank() == 0 ? 2 : 6);
        const auto report = (*reducer)->Finish(kLong);
        ASSERT_OK(report);
        EXPECT_NEAR(report->weight, ranks == 1 ? 64 : 256, 1e-3);
        for (size_t i = 0; i < 2; ++i) {
          EXPECT_THAT(Floats((*reducer)->Gradient(i)), Each(::testing::FloatNear(expected, 1e-4)));
        }
      }
      // Nobody has data: what was marked counts for nothing, and the rest stays as it is.
      ASSERT_OK((*reducer)->BeginStep(true, 0));
      Fill(**reducer, 0, 9);
      Fill(**reducer, 1, 7);
      ASSERT_OK((*reducer)->MarkReady(0));
      const auto report = (*reducer)->Finish(kLong);
      ASSERT_OK(report);
      EXPECT_EQ(report->weight, 0);
      EXPECT_THAT(Floats((*reducer)->Gradient(0)), Each(0.0f));
      EXPECT_THAT(Floats((*reducer)->Gradient(1)), Each(7.0f));
    });
  }
}

TEST(Reducer, SkipsAStepTogether) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({3, 200}, 0);
    ReducerOptions options = Small();
    options.non_finite = NonFinite::kSkip;
    auto reducer = Reducer::Create(communicator, model.parameters(), options);
    ASSERT_OK(reducer);
    for (int step = 1; step <= 4; ++step) {
      ASSERT_OK((*reducer)->BeginStep());
      MarkAll(**reducer, communicator.rank() == 0 && step == 2 ? NAN : 1);
      const auto report = (*reducer)->Finish(kLong);
      ASSERT_OK(report);
      EXPECT_EQ(report->skipped, step == 2);
      EXPECT_EQ(report->reason.empty(), step != 2) << report->reason;
    }
  });
}

TEST(Reducer, AccumulatesWithoutExchange) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({2}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), Small());
    ASSERT_OK(reducer);
    ASSERT_OK((*reducer)->BeginStep(false));
    Fill(**reducer, 0, 1.0f + communicator.rank());
    ASSERT_OK((*reducer)->MarkReady(0));
    const auto local = (*reducer)->Finish(kLong);
    ASSERT_OK(local);
    EXPECT_FALSE(local->synchronized);
    EXPECT_THAT(Floats((*reducer)->Gradient(0)), Each(1.0f + communicator.rank()));
    ASSERT_OK((*reducer)->BeginStep());
    for (float& one : Floats((*reducer)->Gradient(0))) one += 10;
    ASSERT_OK((*reducer)->MarkReady(0));
    ASSERT_OK((*reducer)->Finish(kLong));
    // The sum of both passes, averaged over the ranks.
    EXPECT_THAT(Floats((*reducer)->Gradient(0)), Each(11.5f));
  });
}

// The buckets lie in shared memory and are reduced in place, also after they were laid out anew.
TEST(Reducer, ReducesInSharedMemory) {
  OnEachRank(shared_memory::ConnectSharedMemory, 3, [](Communicator& communicator) {
    Model model({5, 1, 30000, 17}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), Small());
    ASSERT_OK(reducer);
    for (int step = 0; step < 4; ++step) {
      ASSERT_OK((*reducer)->BeginStep(true, step < 2 ? 1 : communicator.rank()));
      MarkAll(**reducer, 6.0f * communicator.rank() + step);
      const auto report = (*reducer)->Finish(kLong);
      ASSERT_OK(report);
      // (0 + 6 + 12) / 3, and (1 * 6 + 2 * 12) / 3.
      const float expected = (step < 2 ? 6.0f : 10.0f) + step;
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_THAT(Floats((*reducer)->Gradient(i)), Each(::testing::FloatNear(expected, 1e-4)));
      }
    }
    ASSERT_OK((*reducer)->BeginStep());
    MarkAll(**reducer, communicator.rank() == 2 ? NAN : 1);
    EXPECT_THAT((*reducer)->Finish(kLong),
                StatusIs(StatusCode::kOutOfRange, HasSubstr("not finite in step 5: on rank 2")));
  });
}

}  // namespace
}  // namespace cadre
