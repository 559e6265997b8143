#include "rendezvous/job/generation.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "rendezvous/job/status.h"
#include "rendezvous/testing/pass_time.h"

namespace cadre::job {
namespace {

constexpr int64_t kSecondUs = 1000000;

// A job of one or two nodes on a host that is never late; the server began at second 100.
class DeadlinesTest : public testing::Test {
 protected:
  DeadlinesTest() {
    Pass(absl::Seconds(100));
    context_.clock.BeginServing();
    saved::Job job;
    v1::JobSpec* spec = job.mutable_spec();
    spec->set_name("train");
    spec->mutable_nodes()->set_min(1);
    spec->mutable_nodes()->set_max(2);
    spec->mutable_timeouts()->mutable_total()->set_seconds(600);
    spec->mutable_timeouts()->mutable_start()->set_seconds(20);
    spec->mutable_timeouts()->mutable_stop_grace()->set_seconds(5);
    spec->mutable_rendezvous()->mutable_join_timeout()->set_seconds(60);
    job.mutable_times()->set_created_us(100 * kSecondUs);
    job.mutable_times()->set_gathering_us(100 * kSecondUs);
    job.mutable_times()->set_last_join_us(100 * kSecondUs);
    job.set_phase(v1::GATHERING);
    job_ = state::Job(job);
    volatile_.ordered_at = context_.clock.now();
  }
  void Pass(absl::Duration duration) { PassTime(duration, &context_); }
  JobView view() const { return {job_, volatile_, context_}; }
  static MonoTime Second(int64_t second) { return MonoTime::FromMicros(second * kSecondUs); }
  // Forms and runs a generation of one node with one worker.
  void Run() {
    saved::Generation formed;
    formed.set_number(1);
    formed.add_members()->set_node("a");
    formed.mutable_members(0)->set_slots(1);
    formed.add_workers(saved::RANK_ASSIGNED);
    job_.generation = state::Generation(formed);
    job_.saved.set_phase(v1::RUNNING);
  }
  void AllStart() {
    job_.generation.saved.set_workers(0, saved::RANK_RUNNING);
    job_.generation = state::Generation(job_.generation.saved);
  }
  void Stop() {
    job_.generation.saved.mutable_stop()->set_reason("rank 0 crashed");
    job_.saved.set_phase(v1::STOPPING);
  }
  std::string Waits() { return WaitingFor(view(), "", context_.clock.now()); }

  state::State state_;
  step::Context context_{CoreConfig(), &state_};
  state::Job job_;
  VolatileState volatile_{&context_, job_};
};

TEST_F(DeadlinesTest, AGatheringIsGivenUpAfterTheJoinTimeout) {
  EXPECT_EQ(PhaseDeadline(view()), Second(160));
  EXPECT_EQ(TotalDeadline(view()), Second(700));
}

TEST_F(DeadlinesTest, WorkersHaveTheStartTimeoutUntilAllRun) {
  Run();
  EXPECT_EQ(PhaseDeadline(view()), Second(120));
  EXPECT_EQ(Waits(), "1 worker to start (rank 0), 20s left");
  AllStart();
  EXPECT_EQ(PhaseDeadline(view()), Second(700));
  EXPECT_EQ(Waits(), "");
}

TEST_F(DeadlinesTest, AServerThatBeganAnewGivesNodesALeaseToFindIt) {
  Run();
  volatile_.ordered_at = Second(85);
  EXPECT_EQ(StartDeadline(view()), Second(110)) << "and not 105";
}

TEST_F(DeadlinesTest, AStopHasItsGraceAndTheMargin) {
  Run();
  Stop();
  EXPECT_EQ(PhaseDeadline(view()), Second(115));
  EXPECT_EQ(Waits(), "workers on a to stop, 5s left");
  Pass(absl::Seconds(6));
  EXPECT_EQ(Waits(), "workers on a to stop, 9s left");
}

TEST_F(DeadlinesTest, WhatIsSettledWaitsForNoTotalTimeout) {
  Run();
  Stop();
  job_.saved.mutable_times()->set_created_us(-490 * kSecondUs);
  EXPECT_EQ(PhaseDeadline(view()), Second(110)) << "the whole job's";
  job_.generation.saved.mutable_stop()->mutable_root_cause()->set_cause(v1::TOTAL_TIMEOUT);
  EXPECT_TRUE(HasDecisiveCause(job_.generation));
  EXPECT_EQ(PhaseDeadline(view()), Second(115));
}

TEST_F(DeadlinesTest, OneThatCannotSaveSaysNoTime) {
  Run();
  context_.clock.SetCanSave(false);
  EXPECT_EQ(Waits(), "1 worker to start (rank 0); the server cannot save its state at present");
}

TEST_F(DeadlinesTest, AJobGrowsUntilAWorkerHasSucceeded) {
  Run();
  AllStart();
  volatile_.connections.Attach("a", StreamId{1}, false, v1::Version());
  EXPECT_FALSE(CanGrow(view()));
  volatile_.connections.Attach("b", StreamId{2}, false, v1::Version());
  EXPECT_TRUE(CanGrow(view()));
  EXPECT_TRUE(WantsCheckpoint(view()));
  job_.generation.saved.set_workers(0, saved::RANK_SUCCEEDED);
  job_.generation = state::Generation(job_.generation.saved);
  EXPECT_FALSE(CanGrow(view()));
}

TEST_F(DeadlinesTest, ARunOfANameThatIsUsedAgainBeginsWithAsManyNodesAsCome) {
  job_.policy.scale_up = v1::ElasticPolicy::NEVER;
  // A new run goes on counting generations, but has no earlier nodes to replace.
  job_.generation.saved.set_number(3);
  EXPECT_GE(GatheringOf(view()).most, 2u);
  Run();
  EXPECT_EQ(GatheringOf(view()).most, 1u);
}

}  // namespace

}  // namespace cadre::job
