#include "cadre/reducer.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"
#include "cadre/hooks/all_reduce.h"
#include "cadre/hooks/sixteen_bit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/progress/progress_page.h"
#include "worker_runtime/reduce/bucket_reduction.h"
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
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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
    // Gradients are moved.
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
    // The first error is kept.
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
    // Rank 0 has no data; the content of its buckets does not count.
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
    // No rank has data: nothing changes.
    Fill(**reducer, 0, 5.0f + communicator.rank());
    ASSERT_OK((*reducer)->BeginStep(true, 0));
    const auto report = (*reducer)->Finish(kLong);
    ASSERT_OK(report);
    EXPECT_EQ(report->weight, 0);
    EXPECT_THAT(Floats((*reducer)->Gradient(0)), Each(5.0f + communicator.rank()));
    EXPECT_THAT((*reducer)->BeginStep(true, -1), StatusIs(StatusCode::kInvalidArgument));
  });
}

// Gradients that are multiplied by the weight for a hook are divided by the sum of the ranks'
// weights.
TEST(Reducer, RanksCountByTheirWeightWithAHookToo_AlsoARankAlone) {
  for (const int ranks : {1, 2}) {
    OnEachRank(ranks, [ranks](Communicator& communicator) {
      Model model({3, 200}, 0);
      ReducerOptions options = Small();
      options.hook = std::make_shared<hooks::AllReduceHook>();
      auto reducer = Reducer::Create(communicator, model.parameters(), options);
      ASSERT_OK(reducer);
      // One rank: 2. Two ranks with weights 64 and 192: 0.25 * 2 + 0.75 * 6.
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
      // No rank has data: marked gradients count for nothing, and the others are unchanged.
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

// The buckets are in shared memory and are reduced in place, also after they were laid out anew.
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

// Hooks see gradients of their usual magnitude, whatever the ranks' numbers of samples.

ReducerOptions With(std::shared_ptr<CommunicationHook> hook) {
  ReducerOptions options = Small();
  options.hook = std::move(hook);
  options.non_finite = NonFinite::kSkip;
  return options;
}

std::shared_ptr<CommunicationHook> Clipping(double limit) {
  return std::make_shared<hooks::ClippingHook>(limit, std::make_shared<hooks::AllReduceHook>());
}

// Holds from the first step on, and when all weights change together.
TEST(ReducerWeights, OfEqualRanksChangeNothing) {
  for (const int ranks : {2, 3}) {
    OnEachRank(ranks, [](Communicator& communicator) {
      Model model({3, 200}, 0);
      auto reducer = Reducer::Create(communicator, model.parameters(), With(Clipping(100)));
      ASSERT_OK(reducer);
      for (const double weight : {512, 512, 384, 384}) {
        ASSERT_OK((*reducer)->BeginStep(true, weight));
        MarkAll(**reducer, 90);
        ASSERT_OK((*reducer)->Finish(kLong));
        EXPECT_THAT(Floats((*reducer)->Gradient(0)), Each(::testing::FloatNear(90, 1e-4)));
      }
    });
  }
}

TEST(ReducerWeights, DoNotOverflowInSixteenBits) {
  OnEachRank(2, [](Communicator& communicator) {
    Model model({3, 200}, 0);
    auto reducer = Reducer::Create(communicator, model.parameters(), With(hooks::Fp16Hook()));
    ASSERT_OK(reducer);
    const bool first = communicator.rank() == 0;
    for (const double samples : {512, 4096, 1}) {
      ASSERT_OK((*reducer)->BeginStep(true, first ? samples : 3 * samples));
      MarkAll(**reducer, first ? 40 : 200);
      const auto report = (*reducer)->Finish(kLong);
      ASSERT_OK(report);
      EXPECT_EQ(report->weight, 4 * samples);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_THAT(Floats((*reducer)->Gradient(i)), Each(::testing::FloatNear(160, 0.2)));
      }
    }
  });
}

// Holds also if a rank, or every rank, has no data in the first step.
TEST(ReducerWeights, OfRanksWithoutDataInTheFirstStep) {
  for (const bool all : {false, true}) {
    OnEachRank(2, [all](Communicator& communicator) {
      Model model({3, 200}, 0);
      auto reducer = Reducer::Create(communicator, model.parameters(), With(Clipping(100)));
      ASSERT_OK(reducer);
      const bool first = communicator.rank() == 0;
      for (int step = 0; step < 3; ++step) {
        const double weight = step == 0 && (all || first) ? 0 : 64;
        // Begun twice, as after a forward pass without a backward pass.
        if (!all) {
          ASSERT_OK((*reducer)->BeginStep(true, 7));
        }
        ASSERT_OK((*reducer)->BeginStep(true, weight));
        MarkAll(**reducer, 1);
        const auto report = (*reducer)->Finish(kLong);
        ASSERT_OK(report);
        if (report->weight > 0) {
          EXPECT_THAT(Floats((*reducer)->Gradient(1)), Each(::testing::FloatNear(1, 1e-6)));
        }
      }
    });
  }
}

// How the reducer handles gradients that become infinite only in a hook.

// Fits into float32, but not into float16.
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
  // Makes a step in which all gradients are `value`.
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

// A non-finite value that the skipped step left in the place of an unused gradient is not reported.
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

// The reducer's errors when ranks disagree, are missing, or violate its rules.

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
    // Waits until the other rank has begun its step, too.
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

// Fault (collective): Ranks pass different options to a reducer, its hook, a wrapper or an
// optimizer -> All ranks get the first option that differs, with both values, before data are
// exchanged
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
    // Rank 0 broadcasts without waiting for the others, so it may get as far as the first
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
