// What hooks see of ranks' weights: gradients of their own order, whatever the numbers of samples.
#include <memory>
#include <utility>

#include "base/status_matchers.h"
#include "cadre/hooks/all_reduce.h"
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

using ::testing::Each;

ReducerOptions With(std::shared_ptr<CommunicationHook> hook) {
  ReducerOptions options = Small();
  options.hook = std::move(hook);
  options.non_finite = NonFinite::kSkip;
  return options;
}

std::shared_ptr<CommunicationHook> Clipping(double limit) {
  return std::make_shared<hooks::ClippingHook>(limit, std::make_shared<hooks::AllReduceHook>());
}

// From the first step on, and when all of them change together.
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

// Also where the first step is one that a rank, or every rank, has no data for.
TEST(ReducerWeights, OfRanksWithoutDataInTheFirstStep) {
  for (const bool all : {false, true}) {
    OnEachRank(2, [all](Communicator& communicator) {
      Model model({3, 200}, 0);
      auto reducer = Reducer::Create(communicator, model.parameters(), With(Clipping(100)));
      ASSERT_OK(reducer);
      const bool first = communicator.rank() == 0;
      for (int step = 0; step < 3; ++step) {
        const double weight = step == 0 && (all || first) ? 0 : 64;
        // Begun twice, as after a forward pass that was for nothing.
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

}  // namespace
}  // namespace cadre
