#include "bench/goodput/ledger.h"

#include <unistd.h>

#include <fstream>

#include "base/status_matchers.h"
#include "tests/testing/process.h"

namespace cadre::bench {
namespace {

MonoTime At(int64_t ms) { return MonoTime::FromMicros(ms * 1000); }

TEST(LedgerTest, WhatWasWrittenIsRead) {
  const std::string dir = MakeTempDir("ledger");
  absl::StatusOr<Ledger> ledger = Ledger::Open(dir);
  ASSERT_THAT(ledger, IsOk());
  ledger->Step(7);
  ledger->Event(3, "main");
  std::ofstream(dir + "/steps", std::ios::app) << "8 12";  // killed while it wrote
  const std::vector<FinishedStep> steps = ReadSteps(dir);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].step, 7);
  const std::vector<WorkerEvent> events = ReadEvents(dir);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].pid, getpid());
  EXPECT_EQ(events[0].rank, 3);
  EXPECT_EQ(events[0].event, "main");
  EXPECT_GE(events[0].at, steps[0].at);
}

TEST(LedgerTest, OnlyTheFurthestStepCounts) {
  const std::vector<FinishedStep> steps = {{1, At(10)}, {2, At(20)}, {1, At(30)}, {2, At(40)}};
  EXPECT_EQ(FurthestStep(steps, At(5)), 0);
  EXPECT_EQ(FurthestStep(steps, At(15)), 1);
  EXPECT_EQ(FurthestStep(steps, At(99)), 2);
}

TEST(RecoveryTest, TheLongestPauseAfterTheKill) {
  // Killed at 100; one step still ends; two are done again.
  const std::vector<FinishedStep> steps = {{1, At(50)},   {2, At(95)},   {3, At(105)},
                                           {2, At(1000)}, {3, At(1050)}, {4, At(1100)}};
  const std::vector<WorkerEvent> events = {{7, 0, "main", At(20)},     {8, 0, "main", At(400)},
                                           {9, 1, "main", At(500)},    {8, 0, "connected", At(600)},
                                           {9, 1, "resumed", At(700)}, {9, 1, "main", At(5000)}};
  const Recovery recovery = RecoveryFrom(At(100), At(2000), steps, events);
  EXPECT_EQ(recovery.redone, 2);
  EXPECT_EQ(recovery.to_first_step, absl::Milliseconds(900));
  EXPECT_EQ(recovery.to_main, absl::Milliseconds(400));
  EXPECT_EQ(recovery.to_connected, absl::Milliseconds(500));
  EXPECT_EQ(recovery.to_resumed, absl::Milliseconds(600));
}

TEST(RecoveryTest, NoStepAfterTheKill) {
  const std::vector<FinishedStep> steps = {{1, At(50)}, {2, At(95)}};
  EXPECT_EQ(RecoveryFrom(At(100), At(2000), steps, {}).to_first_step, absl::InfiniteDuration());
}

}  // namespace
}  // namespace cadre::bench
