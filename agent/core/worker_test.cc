#include "agent/core/worker.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

WorkerState After(std::initializer_list<WorkerEvent> events) {
  Worker worker;
  for (const WorkerEvent event : events) worker.Take(event);
  return worker.state;
}

TEST(Worker, GivesItsGenerationUp_AlsoBeforeItsProcessIsKnown) {
  EXPECT_EQ(After({WorkerEvent::kRuns, WorkerEvent::kWaits}), WorkerState::kWaits);
  EXPECT_EQ(After({WorkerEvent::kWaits, WorkerEvent::kRuns}), WorkerState::kWaits);
  EXPECT_EQ(After({WorkerEvent::kCanRejoin, WorkerEvent::kRuns}), WorkerState::kCanRejoin);
}

TEST(Worker, TheServerIsToldOncePerConnection) {
  EXPECT_EQ(After({WorkerEvent::kWaits, WorkerEvent::kServerTold}), WorkerState::kGaveUp);
  EXPECT_EQ(After({WorkerEvent::kWaits, WorkerEvent::kServerTold, WorkerEvent::kServerIsBack}),
            WorkerState::kWaits);
  EXPECT_EQ(After({WorkerEvent::kRuns, WorkerEvent::kServerTold}), WorkerState::kRunning);
}

TEST(Worker, WhoIsLateStaysLate_AndWhoWaitsIsNotLate) {
  EXPECT_EQ(After({WorkerEvent::kRuns, WorkerEvent::kTooLate, WorkerEvent::kWaits}),
            WorkerState::kLate);
  EXPECT_EQ(After({WorkerEvent::kWaits, WorkerEvent::kTooLate}), WorkerState::kWaits);
}

TEST(Worker, WhatSigkillDoesNotEndRemainsUntilItExits) {
  for (int event = 0; event < kWorkerEvents; ++event) {
    const auto next = static_cast<WorkerEvent>(event);
    EXPECT_EQ(Next(WorkerState::kRemains, next),
              next == WorkerEvent::kExits ? WorkerState::kExited : WorkerState::kRemains);
  }
  EXPECT_EQ(After({WorkerEvent::kTooLate, WorkerEvent::kRemains}), WorkerState::kRemains);
}

TEST(Worker, NothingFollowsAnExit) {
  for (int state = 0; state < kWorkerStates; ++state) {
    EXPECT_EQ(Next(static_cast<WorkerState>(state), WorkerEvent::kExits), WorkerState::kExited);
  }
  for (int event = 0; event < kWorkerEvents; ++event) {
    EXPECT_EQ(Next(WorkerState::kExited, static_cast<WorkerEvent>(event)), WorkerState::kExited);
  }
}

TEST(WorkersToKeep, ThoseThatCanRejoin_ButNotWhoIsToBeReplaced) {
  Workers workers;
  workers[0].state = WorkerState::kRunning;
  workers[1].state = WorkerState::kCanRejoin;
  workers[2].state = WorkerState::kGaveUp;
  workers[3].state = WorkerState::kWaits;
  workers[4].state = WorkerState::kExited;
  v1::Stop stop;
  EXPECT_THAT(WorkersToKeep(workers, stop), IsEmpty());
  stop.set_rejoin(true);
  stop.add_replace(3);
  EXPECT_THAT(WorkersToKeep(workers, stop), ElementsAre(1, 2));
}

TEST(SumOfProgress, NamesTheSlowest_AndCountsWhoReports) {
  Workers workers;
  for (uint32_t i = 0; i < 3; ++i) workers[i];
  workers[0].progress.emplace().set_step(7);
  workers[2].progress.emplace().set_step(5);
  workers[2].progress->set_loss(0.5);
  workers[2].progress->set_total(90);
  workers[2].progress->add_figures()->set_name("lr");
  const v1::NodeProgress sum = SumOfProgress(workers);
  EXPECT_EQ(sum.workers(), 2u);
  EXPECT_EQ(sum.min_step(), 5u);
  EXPECT_EQ(sum.max_step(), 7u);
  EXPECT_EQ(sum.slowest_local_rank(), 2u);
  EXPECT_EQ(sum.loss(), 0.5);
  EXPECT_EQ(sum.total(), 90u);
  ASSERT_EQ(sum.figures_size(), 1);
  EXPECT_EQ(sum.figures(0).name(), "lr");
}

}  // namespace
}  // namespace cadre::agent
