#include "worker_runtime/reduce/gradient_buckets.h"

#include <chrono>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::reduce {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr DataType kF32 = DataType::kFloat32;
constexpr DataType kF64 = DataType::kFloat64;

std::vector<GradientShape> Floats(std::vector<size_t> bytes) {
  std::vector<GradientShape> shapes;
  for (size_t b : bytes) shapes.push_back({b, kF32, -1});
  return shapes;
}

TEST(AssignBuckets, ClosesABucketOnceItHoldsTheLimit) {
  // 400 + 200 stays below 1000; the third gradient takes it over; the next bucket starts empty.
  EXPECT_THAT(AssignBuckets(Floats({400, 200, 900, 400, 600, 1}), {1000}, {0, 1, 2, 3, 4, 5}),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4), ElementsAre(5)));
}

TEST(AssignBuckets, WalksTheLimitsAndStaysOnTheLast) {
  EXPECT_THAT(AssignBuckets(Floats({10, 10, 10, 10, 10, 10}), {10, 20}, {0, 1, 2, 3, 4, 5}),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2), ElementsAre(3, 4), ElementsAre(5)));
}

TEST(AssignBuckets, FollowsTheGivenOrder) {
  EXPECT_THAT(AssignBuckets(Floats({10, 10, 10, 10}), {10, 100}, {2, 0, 3, 1}),
              ElementsAre(ElementsAre(2), ElementsAre(0, 3, 1)));
}

TEST(AssignBuckets, AHugeGradientJoinsWhatIsOpen) {
  EXPECT_THAT(AssignBuckets(Floats({1, 1000000, 1}), {100}, {0, 1, 2}),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
}

TEST(AssignBuckets, SeparatesTypesAndDevicesEachWithItsOwnLimits) {
  const std::vector<GradientShape> shapes = {{10, kF32, -1}, {10, kF64, -1}, {10, kF32, 0},
                                             {10, kF32, -1}, {10, kF64, -1}, {10, kF32, 0}};
  // Each of the three kinds closes its first bucket at 10 bytes; what is left follows by its
  // opening.
  EXPECT_THAT(AssignBuckets(shapes, {10, 100}, {0, 1, 2, 5, 4, 3}),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(5),
                          ElementsAre(4), ElementsAre(3)));
}

TEST(AssignBuckets, WithoutLimitsThereIsOneBucketOfEachKind) {
  const std::vector<GradientShape> shapes = {{1 << 30, kF64, -1}, {8, kF32, -1}, {8, kF64, -1}};
  EXPECT_THAT(AssignBuckets(shapes, {}, {0, 1, 2}), ElementsAre(ElementsAre(0, 2), ElementsAre(1)));
}

TEST(AssignBuckets, ALimitOfZeroPutsEachGradientAlone) {
  EXPECT_THAT(AssignBuckets(Floats({4, 4}), {0}, {0, 1}),
              ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(AssignBuckets, NothingGivesNothing) { EXPECT_THAT(AssignBuckets({}, {10}, {}), IsEmpty()); }

TEST(ReverseOrder, CountsDown) {
  EXPECT_THAT(ReverseOrder(3), ElementsAre(2, 1, 0));
  EXPECT_THAT(ReverseOrder(0), IsEmpty());
}

TEST(GradientReadiness, AGradientBecomesReadyOnceInAStep) {
  GradientReadiness readiness(3, /*static_graph=*/false);
  for (int step = 0; step < 2; ++step) {
    readiness.BeginStep();
    EXPECT_FALSE(readiness.any());
    EXPECT_TRUE(readiness.Mark(2));
    EXPECT_TRUE(readiness.Mark(0));
    EXPECT_FALSE(readiness.MayMark(2));
    EXPECT_TRUE(readiness.MayMark(1));
    EXPECT_TRUE(readiness.IsComplete(0));
    EXPECT_FALSE(readiness.IsComplete(1));
    EXPECT_FALSE(readiness.IsMarked(1));
    EXPECT_THAT(readiness.order(), ElementsAre(2, 0));
    EXPECT_THAT(readiness.Missing(), ElementsAre(1));
    readiness.LearnGraph();  // there is none to learn
  }
}

TEST(GradientReadiness, WhatIsNotedIsInOrderBeforeItIsMarked) {
  GradientReadiness readiness(3, /*static_graph=*/false);
  for (int step = 0; step < 2; ++step) {
    readiness.BeginStep();
    readiness.Note(2);
    readiness.Note(1);
    EXPECT_FALSE(readiness.any());
    EXPECT_FALSE(readiness.IsMarked(2));
    EXPECT_TRUE(readiness.Mark(1));
    EXPECT_TRUE(readiness.Mark(0));
    EXPECT_TRUE(readiness.Mark(2));
    EXPECT_THAT(readiness.order(), ElementsAre(2, 1, 0));
  }
}

TEST(GradientReadiness, WithAStaticGraphTheFirstStepSaysHowOften) {
  GradientReadiness readiness(3, /*static_graph=*/true);
  readiness.BeginStep();
  EXPECT_FALSE(readiness.Mark(1));
  EXPECT_FALSE(readiness.Mark(0));
  EXPECT_FALSE(readiness.Mark(1)) << "nobody knows yet whether that was the last time";
  EXPECT_TRUE(readiness.MayMark(1));
  EXPECT_FALSE(readiness.IsComplete(1));
  EXPECT_THAT(readiness.order(), ElementsAre(1, 0));
  EXPECT_THAT(readiness.Missing(), IsEmpty());
  readiness.LearnGraph();
  readiness.BeginStep();
  EXPECT_FALSE(readiness.Mark(1));
  EXPECT_THAT(readiness.Missing(), ElementsAre(0, 1));
  EXPECT_TRUE(readiness.Mark(1));
  EXPECT_TRUE(readiness.Mark(0));
  EXPECT_FALSE(readiness.MayMark(1));
  EXPECT_FALSE(readiness.MayMark(2)) << "it was not used in the first step";
  EXPECT_FALSE(readiness.IsComplete(2));
  EXPECT_THAT(readiness.Missing(), IsEmpty());
  readiness.LearnGraph();
  readiness.BeginStep();
  EXPECT_THAT(readiness.Missing(), ElementsAre(0, 1)) << "only the first step counts";
}

TEST(GradientReadiness, WhatWasAccumulatedCountsAsUsedUntilItIsForgotten) {
  GradientReadiness readiness(2, /*static_graph=*/false);
  readiness.Accumulate(1);
  readiness.BeginStep();
  EXPECT_FALSE(readiness.IsUsed(0));
  EXPECT_TRUE(readiness.IsUsed(1));
  EXPECT_FALSE(readiness.IsMarked(1));
  readiness.Mark(0);
  EXPECT_TRUE(readiness.IsUsed(0));
  readiness.ForgetAccumulated();
  EXPECT_FALSE(readiness.IsUsed(1));
}

TEST(AgreeOnReadyOrder, IsRankZerosEverywhere) {
  testing::InProcessWorkers workers(3);
  workers.Run([](Worker& worker) {
    auto communicator = sockets::ConnectSockets(worker, {});
    ASSERT_OK(communicator);
    const std::vector<size_t> ready =
        worker.rank() == 0 ? std::vector<size_t>{3, 1} : std::vector<size_t>{0, 1, 2, 3, 4};
    const auto order = AgreeOnReadyOrder(**communicator, ready, 5, std::chrono::seconds(30));
    ASSERT_OK(order);
    EXPECT_THAT(*order, ElementsAre(3, 1, 4, 2, 0));
  });
}

}  // namespace

}  // namespace cadre::reduce
