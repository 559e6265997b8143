#include "rendezvous/job/restart_decision.h"

#include <cerrno>
#include <csignal>
#include <vector>

#include "gtest/gtest.h"

namespace cadre::job {
namespace {

v1::Failure Because(v1::FailureCause cause) {
  v1::Failure failure;
  failure.set_cause(cause);
  return failure;
}

v1::Failure Exit(int code, int signal = 0) {
  v1::Failure failure = Because(v1::CRASH);
  failure.mutable_exit()->set_exit_code(code);
  failure.mutable_exit()->set_signal(signal);
  return failure;
}

state::Policy Budget(uint32_t max) {
  v1::JobSpec spec;
  spec.mutable_nodes()->set_min(2);
  spec.mutable_nodes()->set_max(2);
  spec.mutable_restart()->set_max(max);
  return state::PolicyOf(spec);
}

const MonoTime kNow = MonoTime::FromMicros(1000000000);

// Returns `count` restarts, a second apart, the last one now.
std::vector<int64_t> Earlier(int count) {
  std::vector<int64_t> times;
  for (int i = count; i > 0; --i) times.push_back(kNow.micros() - (i - 1) * 1000000);
  return times;
}

// Decides after this many restarts, all of them in vain.
RestartDecision After(int restarts, const v1::Failure& failure, const state::Policy& policy,
                      uint32_t survivors = 2) {
  const std::vector<int64_t> times = Earlier(restarts);
  return DecideRestart(failure, policy, {times, static_cast<uint32_t>(restarts)}, survivors, kNow);
}

TEST(RestartTest, TheBackoffDoublesUpToItsLimit) {
  const int expected[] = {0, 1, 2, 4, 8, 16, 32, 60, 60};
  for (int i = 0; i < 9; ++i) {
    const RestartDecision decision = After(i, Exit(1), Budget(100));
    EXPECT_TRUE(decision.again && decision.counted);
    EXPECT_EQ(decision.delay, absl::Seconds(expected[i])) << i;
  }
}

TEST(RestartTest, TheBackoffGrowsWithTheRestartsInVainAlone_AndEachTakesOfTheBudget) {
  const std::vector<int64_t> times = Earlier(5);
  const auto after = [&](uint32_t without_progress, uint32_t budget) {
    return DecideRestart(Exit(1), Budget(budget), {times, without_progress}, 2, kNow);
  };
  EXPECT_EQ(after(0, 100).delay, absl::ZeroDuration());
  EXPECT_EQ(after(2, 100).delay, absl::Seconds(2));
  EXPECT_EQ(after(0, 100).reason, "restart 6 of 100");
  EXPECT_FALSE(after(0, 5).again);
}

TEST(RestartTest, OnlyRestartsInVainWithinTheWindowMakeItWait) {
  state::Policy policy = Budget(9);
  policy.restart_window = absl::Seconds(3);
  const std::vector<int64_t> times = Earlier(8);
  EXPECT_EQ(DecideRestart(Exit(1), policy, {times, 8}, 2, kNow).delay, absl::Seconds(8));
  EXPECT_EQ(DecideRestart(Exit(1), policy, {times, 1}, 2, kNow).delay, absl::Seconds(1));
}

GenerationRun Ran(double lasted, double start) {
  GenerationRun run;
  run.lasted = absl::Seconds(lasted);
  run.start = absl::Seconds(start);
  return run;
}

TEST(GotOnTest, WithoutSteps_WhatRanForLongerThanItsStartTook) {
  const state::Policy policy = Budget(1);
  EXPECT_TRUE(MadeProgress(Ran(4, 1.9), policy));
  EXPECT_FALSE(MadeProgress(Ran(4, 2.1), policy));
  // It never got past its start.
  EXPECT_FALSE(MadeProgress(Ran(100, 100), policy));
  // A program that fails at once, in a loop.
  EXPECT_FALSE(MadeProgress(Ran(0.99, 0.01), policy));
  EXPECT_TRUE(MadeProgress(Ran(1, 0.01), policy));
}

TEST(GotOnTest, WithSteps_WhatCameToOneWhereNobodyHadBeen) {
  const state::Policy policy = Budget(1);
  GenerationRun run = Ran(100, 1);
  run.furthest_step = 40;
  // It reported no step though earlier generations had.
  EXPECT_FALSE(MadeProgress(run, policy));
  run.step = 40;
  EXPECT_FALSE(MadeProgress(run, policy));
  run.step = 41;
  EXPECT_TRUE(MadeProgress(run, policy));
  // That holds however long the start took.
  run.start = absl::Seconds(99);
  EXPECT_TRUE(MadeProgress(run, policy));
  run.lasted = absl::Milliseconds(999);
  EXPECT_FALSE(MadeProgress(run, policy));
}

TEST(GotOnTest, InPlace_WhatLasted) {
  state::Policy policy = Budget(1);
  policy.in_place = true;
  EXPECT_FALSE(MadeProgress(Ran(0.9, 0), policy));
  EXPECT_TRUE(MadeProgress(Ran(1, 0.9), policy));
}

TEST(RestartTest, TheBudgetEnds) {
  EXPECT_TRUE(After(1, Exit(1), Budget(2)).again);
  const RestartDecision decision = After(2, Exit(1), Budget(2));
  EXPECT_FALSE(decision.again);
  EXPECT_EQ(decision.reason, "restarts used: 2 of 2");
  EXPECT_FALSE(DecideRestart(Exit(1), Budget(0), {}, 2, kNow).again);
}

TEST(RestartTest, OnlyRestartsWithinTheWindowCount) {
  state::Policy policy = Budget(2);
  policy.restart_window = absl::Seconds(10);
  const int64_t long_ago = kNow.micros() - 11000000;
  const std::vector<int64_t> times = {long_ago, kNow.micros()};
  EXPECT_TRUE(DecideRestart(Exit(1), policy, {times, 2}, 2, kNow).again);
  EXPECT_EQ(After(2, Exit(1), policy).reason, "restarts used: 2 of 2 within 10s");
}

TEST(RestartTest, SomeEndsAreFinal) {
  for (const v1::FailureCause cause :
       {v1::EXEC_FAILED, v1::CANCELLED, v1::JOIN_TIMEOUT, v1::TOTAL_TIMEOUT}) {
    EXPECT_FALSE(DecideRestart(Because(cause), Budget(9), {}, 2, kNow).again) << cause;
  }
  EXPECT_EQ(DecideRestart(Exit(93), Budget(9), {}, 2, kNow).reason, "status 93 is never restarted");
}

TEST(RestartTest, OnlyListedCausesAreTriedAgain) {
  state::Policy policy = Budget(9);
  policy.retried = {v1::HANG};
  EXPECT_TRUE(DecideRestart(Because(v1::HANG), policy, {}, 2, kNow).again);
  EXPECT_EQ(DecideRestart(Exit(1), policy, {}, 2, kNow).reason, "restart.on does not list crash");
}

TEST(RestartTest, AnElasticJobThatLosesANodeGoesOnForFree) {
  state::Policy policy = Budget(0);
  policy.max = 4;
  const RestartDecision decision = DecideRestart(Because(v1::NODE_LOST), policy, {}, 2, kNow);
  EXPECT_TRUE(decision.again);
  EXPECT_FALSE(decision.counted);
  EXPECT_FALSE(DecideRestart(Because(v1::NODE_LOST), policy, {}, 1, kNow).again);
  EXPECT_FALSE(DecideRestart(Exit(1), policy, {}, 4, kNow).again);
}

TEST(RestartTest, AJobOfTheClusterFromWhichANodeIsTakenGoesOnForFree) {
  const auto decide = [](const v1::Failure& failure, bool of_cluster) {
    return DecideRestart(failure, Budget(0), {}, 1, kNow, {of_cluster});
  };
  v1::Failure taken = Because(v1::PREEMPTED);
  taken.set_node("n1");
  EXPECT_TRUE(decide(taken, true).again);
  EXPECT_FALSE(decide(taken, true).counted);
  EXPECT_FALSE(decide(taken, false).again);
  // A worker that a person kills, or a warning to the whole job, is no preempted node.
  v1::Failure worker = taken;
  worker.mutable_exit()->set_signal(SIGTERM);
  EXPECT_FALSE(decide(worker, true).again);
  EXPECT_FALSE(decide(Because(v1::PREEMPTED), true).again);
}

TEST(RestartTest, AJobOfTheClusterThatLosesANodeGoesOnForFree_SoOften) {
  v1::Failure lost = Because(v1::NODE_LOST);
  lost.set_node("n1");
  const auto decide = [&](uint32_t budget, bool of_cluster, uint32_t free) {
    return DecideRestart(lost, Budget(budget), {}, 1, kNow, {of_cluster, true, free});
  };
  EXPECT_TRUE(decide(0, true, kFreeNodeLosses - 1).again);
  EXPECT_FALSE(decide(0, true, kFreeNodeLosses - 1).counted);
  EXPECT_FALSE(decide(0, true, kFreeNodeLosses).again);
  EXPECT_TRUE(decide(1, true, kFreeNodeLosses).counted);
  EXPECT_FALSE(decide(0, false, 0).again);
  // Only the job's launcher ended there.
  EXPECT_FALSE(DecideRestart(lost, Budget(0), {}, 1, kNow, {true, false}).again);
}

TEST(RestartTest, WithoutAFailureItIsFree) {
  const RestartDecision decision = DecideRestart(std::nullopt, Budget(0), {}, 2, kNow);
  EXPECT_TRUE(decision.again);
  EXPECT_FALSE(decision.counted);
}

TEST(RestartTest, ExitStatuses) {
  EXPECT_EQ(ExitStatusFor(Exit(3)), 3);
  EXPECT_EQ(ExitStatusFor(Exit(0, 9)), 137);
  EXPECT_EQ(ExitStatusFor(Exit(0)), 1);
  EXPECT_EQ(ExitStatusFor(Because(v1::NODE_LOST)), 75);
  EXPECT_EQ(ExitStatusFor(Because(v1::PREEMPTED)), 75);
  v1::Failure worker = Because(v1::PREEMPTED);
  worker.mutable_exit()->set_signal(SIGTERM);
  EXPECT_EQ(ExitStatusFor(worker), 143);
  EXPECT_EQ(ExitStatusFor(Because(v1::JOIN_TIMEOUT)), 75);
  EXPECT_EQ(ExitStatusFor(Because(v1::START_TIMEOUT)), 124);
  EXPECT_EQ(ExitStatusFor(Because(v1::TOTAL_TIMEOUT)), 124);
  EXPECT_EQ(ExitStatusFor(Because(v1::CANCELLED)), 130);
  v1::Failure cancelled = Because(v1::CANCELLED);
  cancelled.mutable_exit()->set_signal(15);
  EXPECT_EQ(ExitStatusFor(cancelled), 143);
  v1::Failure exec = Because(v1::EXEC_FAILED);
  exec.mutable_exit()->set_exec_errno(ENOENT);
  EXPECT_EQ(ExitStatusFor(exec), 127);
  exec.mutable_exit()->set_exec_errno(EACCES);
  EXPECT_EQ(ExitStatusFor(exec), 126);
  exec.mutable_exit()->set_exec_errno(EADDRINUSE);
  EXPECT_EQ(ExitStatusFor(exec), 69);
}

}  // namespace

}  // namespace cadre::job
