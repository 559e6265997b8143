#include "rendezvous/job/jobs.h"

#include <cstdint>
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/state/apply.h"
#include "rendezvous/testing/pass_time.h"
#include "rendezvous/testing/test_messages.h"

namespace cadre::job {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// Jobs of two nodes with a worker each, on a host that is never late.
class JobsTest : public testing::Test {
 protected:
  JobsTest() { Pass(absl::Seconds(1)); }
  void Pass(absl::Duration duration) { PassTime(duration, &context_); }
  // Advances the jobs as Core does, and checks their invariants.
  Effects Advance() {
    jobs_.EndLeases();
    jobs_.Advance();
    EXPECT_TRUE(jobs_.CheckInvariants().ok()) << jobs_.CheckInvariants();
    return context_.out.Take();
  }
  static v1::JobSpec Spec(const std::string& job) { return SpecOf(job, 2, 2, 0); }
  Effects Join(uint64_t stream, const v1::JobSpec& spec, const std::string& node,
               uint64_t incarnation = 1, uint64_t generation = 0) {
    jobs_.Join(StreamId{stream}, JoinFrom({spec.name(), node, incarnation, generation}, spec, 1));
    return Advance();
  }
  Effects Cancel(const std::string& job) {
    jobs_.Cancel(job, "", 0, v1::CANCELLED);
    return Advance();
  }
  void Close(const std::string& job, const std::string& node) {
    jobs_.OnStreamClosed(job, node);
    Advance();
  }
  v1::JobPhase PhaseOf(const std::string& job) { return state_.jobs.at(job).phase(); }
  static std::string ClosedWith(const Effects& effects) {
    return effects.close.size() == 1 ? effects.close[0].status.ToString() : "";
  }

  state::State state_;
  step::Context context_{CoreConfig(), &state_};
  Jobs jobs_{&context_, [](const state::Job&, MonoTime) { return std::string(); }};
};

TEST_F(JobsTest, ANodeWithAnotherSpecIsRefusedAndTheJobGoesOn) {
  Join(1, Spec("train"), "a");
  v1::JobSpec other = Spec("train");
  other.mutable_restart()->set_max(7);
  EXPECT_THAT(ClosedWith(Join(2, other, "b")), HasSubstr("restart.max"));
  EXPECT_EQ(PhaseOf("train"), v1::GATHERING);
  Join(3, Spec("train"), "b");
  EXPECT_EQ(PhaseOf("train"), v1::RUNNING);
}

// torchrun accepts these too: an interpreter at another path, a server's and a client's arguments.
TEST_F(JobsTest, CommandAndRoleAreEachNodesOwn) {
  v1::JobSpec first = SpecOf("train", 3, 3, 0), second = first;
  first.set_role("trainer");
  second.set_role("reader");
  second.add_command("--fast");
  Join(1, first, "a");
  Join(2, second, "b");
  const Effects effects = Join(3, first, "c");
  EXPECT_EQ(PhaseOf("train"), v1::RUNNING);
  std::map<uint32_t, v1::Assign> assigns;
  for (const auto& send : effects.send) {
    if (send.message.has_assign())
      assigns[send.message.assign().node_rank()] = send.message.assign();
  }
  ASSERT_EQ(assigns.size(), 3u);
  EXPECT_EQ(assigns[0].role_first_rank(), 0u);
  EXPECT_EQ(assigns[0].role_world_size(), 2u);
  EXPECT_EQ(assigns[1].role_first_rank(), 0u);
  EXPECT_EQ(assigns[1].role_world_size(), 1u);
  EXPECT_EQ(assigns[2].role_first_rank(), 1u);
  EXPECT_THAT(assigns[0].versions_differ(), AllOf(HasSubstr("the nodes run different commands: "),
                                                  HasSubstr("--fast on b"), HasSubstr(" on a, c")));
}

TEST_F(JobsTest, OneRoleAndOneCommandNeedNoWords) {
  Join(1, Spec("train"), "a");
  for (const auto& send : Join(2, Spec("train"), "b").send) {
    EXPECT_EQ(send.message.assign().role_world_size(), 0u);
    EXPECT_EQ(send.message.assign().versions_differ(), "");
  }
}

TEST_F(JobsTest, AMessageForAnotherJobThanItsSpecIsRefused) {
  const v1::NodeMessage message = JoinFrom({"other", "a"}, Spec("train"), 1);
  EXPECT_EQ(jobs_.CheckJoin(message).message(), "the message is for job other, its spec for train");
}

TEST_F(JobsTest, WhoComesAfterTheEndOfTheOneRunHearsItAndBeginsNoOther) {
  CoreConfig config;
  config.only_job = "train";
  config.runs_once = true;
  step::Context context(config, &state_);
  Jobs jobs(&context, [](const state::Job&, MonoTime) { return std::string(); });
  const auto join = [&](uint64_t stream, const std::string& node) {
    jobs.Join(StreamId{stream}, JoinFrom({"train", node}, Spec("train"), 1));
    jobs.Advance();
    return context.out.Take();
  };
  join(1, "a");
  jobs.Cancel("train", "", 0, v1::CANCELLED);
  jobs.Advance();
  for (const bool others_are_leaving : {true, false}) {
    if (!others_are_leaving) jobs.OnStreamClosed("train", "a");
    const std::string late = others_are_leaving ? "b" : "c";
    const Effects effects = join(others_are_leaving ? 2 : 3, late);
    EXPECT_EQ(ClosedWith(effects), "");
    ASSERT_FALSE(effects.send.empty());
    EXPECT_EQ(effects.send.back().message.finished().verdict().outcome(), v1::CANCELLED_PHASE);
    jobs.OnStreamClosed("train", late);
  }
  EXPECT_EQ(PhaseOf("train"), v1::CANCELLED_PHASE);
  EXPECT_TRUE(jobs.CheckInvariants().ok()) << jobs.CheckInvariants();
  // A restarted server with that state starts the job anew.
  Jobs next(&context, [](const state::Job&, MonoTime) { return std::string(); });
  next.Add("train");
  next.Join(StreamId{4}, JoinFrom({"train", "a", 2}, Spec("train"), 1));
  EXPECT_EQ(PhaseOf("train"), v1::GATHERING);
}

TEST_F(JobsTest, ALaunchersServerTakesNoOtherJob) {
  CoreConfig config;
  config.only_job = "train";
  step::Context context(config, &state_);
  Jobs jobs(&context, [](const state::Job&, MonoTime) { return std::string(); });
  jobs.Join(StreamId{1}, JoinFrom({"other", "a"}, Spec("other"), 1));
  EXPECT_THAT(ClosedWith(context.out.Take()), HasSubstr("served by a launcher of job train"));
  EXPECT_THAT(jobs.MaySubmit(Spec("other"), "ann").message(), HasSubstr("'cadre server'"));
  EXPECT_TRUE(state_.jobs.empty());
}

TEST_F(JobsTest, ANodeThatWasAwayWhenTheJobEndedDoesNotBeginItAnew) {
  Join(1, Spec("train"), "a");
  Close("train", "a");
  Cancel("train");
  const Effects effects = Join(2, Spec("train"), "a");
  ASSERT_EQ(effects.send.size(), 2u);
  EXPECT_TRUE(effects.send[1].message.has_finished());
  EXPECT_EQ(PhaseOf("train"), v1::CANCELLED_PHASE);
  // Nor may a node restart the job that still has workers of it, and whose server knows only the
  // name.
  Join(3, Spec("train"), "z", 9, 4);
  EXPECT_EQ(PhaseOf("train"), v1::CANCELLED_PHASE);
}

TEST_F(JobsTest, AnotherRunBeginsOnlyWhenTheLastNodeHasLeft) {
  Join(1, Spec("train"), "a");
  Cancel("train");
  EXPECT_THAT(ClosedWith(Join(2, Spec("train"), "a", 2)), HasSubstr("still leaving"));
  Close("train", "a");
  Join(3, Spec("train"), "a", 2);
  EXPECT_EQ(PhaseOf("train"), v1::GATHERING);
  EXPECT_EQ(jobs_.Find("train")->view().volatile_state.connections.open(), 1u);
}

TEST_F(JobsTest, TheFirstDeadlineAndTheFirstLeaseOfAllJobsCount) {
  v1::JobSpec hasty = Spec("hasty");
  hasty.mutable_rendezvous()->mutable_join_timeout()->set_seconds(5);
  Join(1, Spec("train"), "a");
  Pass(absl::Seconds(1));
  Join(2, hasty, "b");
  const MonoTime now = context_.clock.now();
  EXPECT_EQ(jobs_.NextDeadline(), now + absl::Seconds(5));
  EXPECT_EQ(jobs_.NextLease(), now + absl::Seconds(9));
  Pass(absl::Seconds(5));
  Advance();
  EXPECT_EQ(PhaseOf("hasty"), v1::FAILED);
  EXPECT_EQ(PhaseOf("train"), v1::GATHERING);
  EXPECT_GT(jobs_.NextDeadline(), now + absl::Seconds(60));
}

TEST_F(JobsTest, AJobThatIsRemovedLeavesNoTimerAndNoStream) {
  Join(1, Spec("train"), "a");
  state_.jobs.erase("train");
  jobs_.Remove("train");
  EXPECT_EQ(jobs_.Find("train"), nullptr);
  EXPECT_FALSE(jobs_.HasLeases());
  EXPECT_EQ(jobs_.NextDeadline(), MonoTime::Never());
  EXPECT_THAT(ClosedWith(Advance()), HasSubstr("ended long ago"));
}

TEST_F(JobsTest, TheClusterHearsOfSilentLaunchersOnce) {
  Join(1, Spec("train"), "a");
  Join(2, Spec("other"), "b");
  jobs_.OnStreamClosed("other", "b");
  Pass(absl::Seconds(10));
  Advance();
  // The other node's launcher was not connected any more.
  EXPECT_THAT(jobs_.TakeClusterEvents().launchers_lost, ElementsAre(Pair("train", "a")));
  EXPECT_TRUE(jobs_.TakeClusterEvents().launchers_lost.empty());
}

TEST_F(JobsTest, TheClusterHearsOfTheJobsThatItSchedulesAlone) {
  Join(1, Spec("nodes"), "a");
  Cancel("nodes");
  EXPECT_THAT(jobs_.TakeClusterEvents().changed, IsEmpty());
  jobs_.Submit(Spec("train"), "ann", "1");
  Advance();
  EXPECT_EQ(PhaseOf("train"), v1::QUEUED);
  EXPECT_THAT(jobs_.TakeClusterEvents().changed, Contains("train"));
  Cancel("train");
  EXPECT_THAT(jobs_.TakeClusterEvents().changed, Contains("train"));
}

TEST_F(JobsTest, WhatMayNotBeSubmittedIsNot) {
  v1::JobSpec empty = Spec("empty");
  empty.clear_command();
  EXPECT_EQ(jobs_.MaySubmit(empty, "ann").message(), "the spec has no command");
  v1::JobSpec large = Spec("large");
  large.add_command(std::string(600 << 10, 'x'));
  EXPECT_FALSE(jobs_.MaySubmit(large, "ann").ok());
  EXPECT_FALSE(jobs_.MaySubmit(Spec("train"), "ann\n").ok());
  EXPECT_FALSE(jobs_.MaySubmit(Spec("train"), "").ok());
  EXPECT_THAT(jobs_.MaySubmit(Spec("17"), "ann").message(), HasSubstr("a job's id"));
  EXPECT_TRUE(jobs_.MaySubmit(Spec("train"), "ann").ok());
  jobs_.Submit(empty, "ann", "1");
  EXPECT_EQ(jobs_.Find("empty"), nullptr);
}

TEST_F(JobsTest, ANameIsTakenUntilTheLastNodeHasLeft) {
  const auto submitted_as = [&] {
    jobs_.Submit(Spec("train"), "ann", "");
    Advance();
    return state_.by_id.at(state_.counters.submitted());
  };
  v1::NodeMessage join = JoinFrom({"train", "a", 1, 0}, Spec("train"), 1);
  join.mutable_join()->mutable_caller()->set_user("ann");
  jobs_.Join(StreamId{1}, join);
  EXPECT_EQ(submitted_as(), "train-1");
  Cancel("train");
  EXPECT_EQ(submitted_as(), "train-2");
  Close("train", "a");
  EXPECT_EQ(submitted_as(), "train");
  // A job of nodes has no id to be kept under.
  EXPECT_EQ(state_.jobs.size(), 3u);
}

// Fault (queue): A job ended so long ago that the server has dropped it, and something of it is left
// on a node -> A new job does not take its name, by which that is known
TEST_F(JobsTest, ANameIsTakenUntilNothingOfADroppedJobIsLeft) {
  state_.cluster.allocations[7].mutable_part()->set_job("train");
  jobs_.Submit(Spec("train"), "ann", "");
  Advance();
  EXPECT_EQ(state_.by_id.at(1), "train-1");
  state_.cluster.allocations.clear();
  jobs_.Submit(Spec("train"), "ann", "");
  Advance();
  EXPECT_EQ(state_.by_id.at(2), "train");
}

TEST_F(JobsTest, ANewJobTakesTheNameOfOneThatHasEnded) {
  jobs_.Submit(Spec("train"), "ann", "");
  jobs_.Submit(Spec("train"), "ann", "");
  Advance();
  EXPECT_EQ(state_.by_id.at(2), "train-2");
  Cancel("train");
  jobs_.Submit(Spec("train"), "bob", "");
  Advance();
  EXPECT_EQ(state_.by_id.at(1), "train-1");
  EXPECT_EQ(state_.by_id.at(3), "train");
  EXPECT_EQ(PhaseOf("train-1"), v1::CANCELLED_PHASE);
  EXPECT_EQ(PhaseOf("train"), v1::QUEUED);
}

TEST_F(JobsTest, ANameWithAnIdIsNeverTooLongAndNeverTaken) {
  const std::string longest(63, 'a');
  jobs_.Submit(Spec("train-3"), "ann", "");
  for (int i = 0; i < 2; ++i) jobs_.Submit(Spec("train"), "ann", "");
  for (int i = 0; i < 2; ++i) jobs_.Submit(Spec(longest), "ann", "");
  Advance();
  EXPECT_EQ(state_.by_id.at(3), "train-3-3");
  EXPECT_EQ(state_.by_id.at(5), std::string(61, 'a') + "-5");
}

TEST_F(JobsTest, ACallOrACancelForNoJobHarmsNobody) {
  v1::StoreRequest request;
  request.set_job("no\nsuch");
  jobs_.OnStoreCall(CallId{7}, request);
  jobs_.Cancel("no\nsuch", "", 0, v1::CANCELLED);
  const Effects effects = Advance();
  ASSERT_EQ(effects.reply.size(), 1u);
  EXPECT_EQ(effects.reply[0].reply.message(), "no job no\\nsuch");
}

TEST_F(JobsTest, NodesHaveALeaseToComeBackToAServerThatBeganAnew) {
  const Effects before = Join(1, Spec("train"), "a");
  state::State state;
  step::Context context(CoreConfig(), &state);
  Jobs jobs(&context, [](const state::Job&, MonoTime) { return std::string(); });
  for (const v1::Record& record : before.append) {
    state::Apply(record, &state);
    if (record.has_job_created()) jobs.Add(record.job());
  }
  context.clock.BeginServing();
  jobs.Restore();
  EXPECT_EQ(jobs.NextLease(), context.clock.lease_now() + CoreConfig().lease);
  EXPECT_EQ(jobs.Find("train")->view().volatile_state.connections.ready(), 0u);
}

}  // namespace
}  // namespace cadre::job
