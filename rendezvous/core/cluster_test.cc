// Tests submitted jobs and the agents of a cluster's nodes through Core.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/testing/cluster_rig.h"
#include "rendezvous/testing/test_messages.h"
#include "rpc/versions.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ClusterTest : public ClusterRig {};

TEST_F(ClusterTest, AJobWaitsInTheQueueUntilAllItsNodesAreThere) {
  EXPECT_THAT(Submit(1, Spec("j", 2)), IsEmpty());
  EXPECT_EQ(PhaseOf("j"), v1::QUEUED);
  EXPECT_THAT(*core_->Explain(Second(1), "j"), HasSubstr("the cluster has none"));
  EXPECT_THAT(Join(2, 1, "n0"), IsEmpty());
  EXPECT_THAT(Join(3, 2, "n1"), ElementsAre("start 1 j on n0", "start 2 j on n1"));
  EXPECT_EQ(PhaseOf("j"), v1::GATHERING);
  EXPECT_EQ(core_->Status(Second(3), "j")->waiting_for(),
            "its launchers on n0, n1 to begin, 10m left");
  Submit(4, Spec("k", 1));
  EXPECT_THAT(core_->Status(Second(4), "k")->waiting_for(),
              HasSubstr("1 node with 4 CPUs free: 0 are, and it is the next"));
}

// Five users together may have this many jobs. None of them can run here, and a job that can run
// must not wait for them.
//
// Fault (queue): Five users submit 5,000 jobs that no node can run -> Each is examined once, and
// again when nodes change; jobs behind them begin at once
TEST_F(ClusterTest, JobsThatCannotRunKeepNobodyWaitingHoweverManyTheyAre) {
  Join(1, 1, "n0");
  for (int i = 0; i < 5000; ++i) {
    Step(2, JobSubmitted{Spec(absl::StrCat("impossible", i), 99), absl::StrCat("u", i / 1000), ""});
  }
  EXPECT_THAT(Submit(3, Spec("j", 1)), ElementsAre("start 1 j on n0"));
  EXPECT_THAT(core_->Status(Second(3), "impossible4999")->waiting_for(),
              HasSubstr("99 nodes with 4 CPUs: the cluster has only 1"));
  // These jobs are considered again once there are other nodes, and after a restart of the server.
  Orders(Step(4, JobCancelled{"j", "", 0}));
  Ended(4, 1, 1);
  Submit(4, Spec("two", 2));
  EXPECT_THAT(core_->Status(Second(4), "two")->waiting_for(), HasSubstr("the cluster has only 1"));
  EXPECT_THAT(Join(5, 2, "n1"), ElementsAre("start 2 two on n0", "start 3 two on n1"));
}

// The nodes that the job asks for are there, but it excludes one of them.
TEST_F(ClusterTest, AJobThatWasSetAsideIsCancelledAndItsNameGivenAnew) {
  Join(1, 1, "n0");
  Submit(2, Spec("j", 2));
  Orders(Step(3, JobCancelled{"j", "", 0}));
  EXPECT_THAT(Submit(4, Spec("j", 1)), ElementsAre("start 1 j on n0"));
  Submit(5, Spec("k", 2));
  RestartServer();
  Orders(Step(6, Tick{}));
  EXPECT_THAT(core_->Status(Second(6), "k")->waiting_for(), HasSubstr("agents of the cluster"));
}

TEST_F(ClusterTest, ACancelledJobLeavesTheQueueAndAnEndedOneItsNodes) {
  Join(1, 1, "n0");
  EXPECT_THAT(Submit(2, Spec("j", 1)), ElementsAre("start 1 j on n0"));
  Submit(2, Spec("k", 1));
  Submit(2, Spec("l", 1));
  EXPECT_THAT(Orders(Step(3, JobCancelled{"k", "no need", 0})), IsEmpty());
  EXPECT_EQ(PhaseOf("k"), v1::CANCELLED_PHASE);
  EXPECT_THAT(Orders(Step(4, JobCancelled{"j", "no need", 0})), ElementsAre("stop 1"));
  EXPECT_THAT(Ended(5, 1, 1), ElementsAre("start 2 l on n0"));
}

// Fault (queue): A job is submitted whose name another job has -> Both have an id, and the name means
// the newest
TEST_F(ClusterTest, AJobIsFoundByItsIdAndTheNewestByItsName) {
  const auto any = [](absl::string_view) { return true; };
  Join(1, 1, "n0");
  EXPECT_THAT(Submit(2, Spec("j", 1)), ElementsAre("start 1 j on n0"));
  Submit(3, Spec("j", 1));
  EXPECT_EQ(core_->NameOf("j", any), "j-2");
  EXPECT_EQ(core_->NameOf("1", any), "j");
  EXPECT_EQ(core_->NameOf("3", any), "3");
  Orders(Step(4, JobCancelled{"j", "", 0}));
  // Its launcher still runs under this name.
  Submit(5, Spec("j", 1));
  EXPECT_EQ(core_->NameOf("3", any), "j-3");
  EXPECT_THAT(Ended(6, 1, 1), ElementsAre("start 2 j-2 on n0"));
  Submit(7, Spec("j", 1));
  EXPECT_EQ(core_->NameOf("1", any), "j-1");
  EXPECT_EQ(core_->NameOf("4", any), "j");
  Core again(CoreConfig{});
  for (const v1::Record& record : core_->Snapshot()) again.Apply(record);
  EXPECT_EQ(again.NameOf("j", any), "j");
  EXPECT_EQ(again.NameOf("2", any), "j-2");
  EXPECT_EQ(again.Status(Second(8), "j-1")->submitted_name(), "j");
}

TEST_F(ClusterTest, AJobSaysWhenItWasSubmittedBeganAndEnded) {
  Submit(1, Spec("j", 1));
  EXPECT_EQ(core_->Status(Second(2), "j")->submitted_unix_ms(), 1000);
  EXPECT_EQ(core_->Status(Second(2), "j")->began_unix_ms(), 0);
  Join(3, 1, "n0");
  EXPECT_EQ(core_->Status(Second(3), "j")->began_unix_ms(), 3000);
  Orders(Step(4, JobCancelled{"j", "", 0}));
  EXPECT_EQ(core_->Status(Second(5), "j")->ended_unix_ms(), 4000);
  v1::JobSpec limited = Spec("k", 1);
  limited.mutable_timeouts()->mutable_total()->set_seconds(60);
  Submit(6, limited);
  EXPECT_EQ(core_->Status(Second(6), "k")->limit_us(), 60'000'000);
}

TEST_F(ClusterTest, TheQueueSurvivesTheServerAndSoDoesWhatWasPlaced) {
  Join(1, 1, "n0");
  Join(1, 2, "n1");
  Submit(2, Spec("j", 1));
  Submit(2, Spec("k", 2));
  Orders(Step(3, NodeDrained{"n1", true, "fan"}));
  Orders(Step(3, NodeDrained{"n1", true, ""}));
  RestartServer();
  EXPECT_EQ(core_->NextDeadline(), MonoTime());
  Orders(Step(4, Tick{}));
  EXPECT_EQ(PhaseOf("k"), v1::QUEUED);
  // The server repeats orders that may have been lost, and leaves alone what runs.
  EXPECT_THAT(Join(5, 7, "n0"), ElementsAre("start 1 j on n0"));
  EXPECT_THAT(Join(5, 8, "n1"), IsEmpty());
  EXPECT_EQ(core_->ClusterNodes()[1].drain_reason(), "fan");
  EXPECT_THAT(Submit(6, Spec("l", 2)), IsEmpty());
  EXPECT_THAT(Orders(Step(7, NodeDrained{"n1", false, ""})), IsEmpty());
  EXPECT_THAT(Orders(Step(8, JobCancelled{"j", "", 0})), ElementsAre("stop 1"));
  EXPECT_THAT(Ended(9, 7, 1), ElementsAre("start 2 k on n0", "start 3 k on n1"));
  // The shorter list of records gives the same state.
  Core again(CoreConfig{});
  for (const v1::Record& record : core_->Snapshot()) again.Apply(record);
  EXPECT_EQ(again.DebugString(), core_->DebugString());
}

// The time that a job waited in the queue is not part of its timeline, which begins when it gets
// its nodes.
TEST_F(ClusterTest, AJobThatWasQueuedWhenTheServerBeganAnewShowsItsFirstProgress) {
  Submit(1, Spec("j", 1));
  RestartServer();
  Orders(Step(7200, Tick{}));
  Join(7201, 1, "n0");
  JoinJob(7202, 7, Spec("j", 1), 1, "n0");
  v1::NodeMessage message;
  message.set_job("j");
  message.set_incarnation(7);
  message.set_generation(1);
  for (uint32_t local_rank = 0; local_rank < 4; ++local_rank) {
    message.mutable_worker_started()->set_local_rank(local_rank);
    Orders(Step(7203, NodeMessageReceived{StreamId{7}, message}));
  }
  message.mutable_progress()->set_workers(4);
  Orders(Step(7204, NodeMessageReceived{StreamId{7}, message}));
  const v1::Timeline timeline = core_->Status(Second(7204), "j")->timeline();
  ASSERT_EQ(timeline.generations_size(), 1);
  EXPECT_EQ(timeline.generations(0).running_us(), 2000000);
  EXPECT_EQ(timeline.generations(0).first_progress_us(), 3000000);
}

// Fault (queue): A cluster's server is restarted, and its agents have not reconnected yet -> It
// waits for them before it gives their nodes to other jobs
TEST_F(ClusterTest, AServerThatBeganAnewWaitsForItsAgentsBeforeItGivesNodesAway) {
  Join(1, 1, "n0");
  Join(1, 2, "n1");
  Submit(2, Spec("small", 1));
  Submit(3, Spec("first", 2));
  Submit(4, Spec("second", 1));
  RestartServer();
  Orders(Step(5, Tick{}));
  EXPECT_THAT(Join(6, 8, "n1"), IsEmpty());
  // n0 does not come back, so its parts are ended. `first` cannot be placed, `second` can, and
  // `small` gets another node in place of the one it had.
  EXPECT_THAT(Pass(6.5, 14.9), IsEmpty());
  EXPECT_THAT(Pass(14.95, 15.1), ElementsAre("start 2 small on n1"));
}

// Fault (queue): A cluster's agent is lost and returns with what it ran -> That is ended first, and
// only then does the node get work
TEST_F(ClusterTest, AnAgentThatIsLostGivesItsPartsUpAndStopsThemWhenItComesBack) {
  Join(1, 1, "n0");
  Submit(2, Spec("j", 1));
  Orders(Step(3, StreamClosed{StreamId{1}}));
  Pass(3.5, 13.5);
  EXPECT_THAT(core_->ClusterNodes()[0].parts(), IsEmpty());
  EXPECT_FALSE(core_->ClusterNodes()[0].connected());
  EXPECT_THAT(Join(14, 2, "n0", {1}), ElementsAre("stop 1"));
  // The node gets nothing new until the leftover part has ended.
  EXPECT_EQ(core_->ClusterNodes()[0].leftovers(), 1u);
  EXPECT_THAT(core_->Status(Second(14), "j")->waiting_for(),
              HasSubstr("n0 is still ending an earlier job"));
  EXPECT_THAT(Ended(15, 2, 1), ElementsAre("start 2 j on n0"));
  EXPECT_EQ(core_->ClusterNodes()[0].leftovers(), 0u);
}

// No agent is admitted while the server cannot save.
//
// Fault (state): A cluster's agent is away, or returns, while the server cannot save -> It is
// admitted when there is room and has a lease for that; its allocations and their jobs go on
TEST_F(ClusterTest, AnAgentThatIsAwayWhileTheServerCannotSaveHasALeaseAfterIt) {
  Join(1, 1, "n0");
  Join(1, 2, "n1");
  Submit(2, Spec("j", 2));
  Orders(Step(3, CanSave{false}));
  Orders(Step(4, StreamClosed{StreamId{1}}));
  Orders(Step(4, StreamClosed{StreamId{2}}));
  EXPECT_THAT(Pass(5, 60), IsEmpty());
  Orders(Step(60, CanSave{true}));
  Pass(60.05, 68.95);
  EXPECT_THAT(Join(69, 3, "n0", {1}), IsEmpty()) << "what it runs goes on";
  EXPECT_EQ(core_->ClusterNodes()[0].parts().size(), 1);
  EXPECT_EQ(core_->ClusterNodes()[1].parts().size(), 1);
  Pass(69.05, 70.1);
  EXPECT_EQ(core_->ClusterNodes()[0].parts().size(), 1);
  EXPECT_THAT(core_->ClusterNodes()[1].parts(), IsEmpty());
}

TEST_F(ClusterTest, ASilentAgentIsLostAndOneThatRenewsIsNot) {
  Join(1, 1, "n0");
  Join(1, 2, "n1");
  for (double at = 2; at < 12; at += 1) {
    Renew(at, 1);
    Pass(at + 0.05, at + 0.95);
  }
  EXPECT_TRUE(core_->ClusterNodes()[0].connected());
  EXPECT_FALSE(core_->ClusterNodes()[1].connected());
}

TEST_F(ClusterTest, AnElasticJobIsShrunkAndGrowsAgain) {
  for (uint64_t i = 1; i <= 3; ++i) Join(1, i, absl::StrCat("n", i));
  EXPECT_EQ(Submit(2, Spec("e", 1, 3)).size(), 3u);
  EXPECT_THAT(Submit(3, Spec("j", 2)), ElementsAre("stop 3", "stop 2"));
  EXPECT_THAT(Ended(4, 3, 3), IsEmpty());
  EXPECT_THAT(Ended(4, 2, 2), ElementsAre("start 4 j on n2", "start 5 j on n3"));
  Orders(Step(5, JobCancelled{"j", "", 0}));
  EXPECT_THAT(Ended(6, 2, 4), ElementsAre("start 6 e on n2"));
  EXPECT_THAT(Ended(6, 3, 5), ElementsAre("start 7 e on n3"));
}

// The first launcher's list names only the nodes that the job had when that launcher was started.
//
// Fault (queue): An elastic submitted job that has grown gathers again, and its first node is back
// before the others -> It waits for the others, as for any survivor
TEST_F(ClusterTest, AJobThatHasGrownDoesNotFormAgainWithThoseItBeganWith) {
  v1::JobSpec spec = Spec("j", 1, 3);
  spec.mutable_restart()->set_max(1);
  spec.mutable_elastic()->set_scale_up(v1::ElasticPolicy::IMMEDIATELY);
  Join(1, 1, "n0");
  Submit(2, spec);
  v1::NodeMessage first = LauncherJoin(10, spec, 1, "n0");
  first.mutable_join()->add_expected_nodes("n0");
  Orders(Step(3, NodeMessageReceived{StreamId{10}, first}));
  ASSERT_EQ(PhaseOf("j"), v1::RUNNING);
  const std::string nodes[] = {"n0", "n1", "n2"};
  for (uint64_t i : {1, 2}) {
    Join(4, i + 1, nodes[i]);
    JoinJob(5, 10 + i, spec, i + 1, nodes[i]);
  }
  Orders(Step(6, NodeMessageReceived{StreamId{10}, StoppedFrom({"j", "n0", 10, 1})}));
  ASSERT_EQ(core_->Status(Second(6), "j")->world_size(), 12u);
  Orders(Step(7, NodeMessageReceived{StreamId{10}, ExitedFrom({"j", "n0", 10, 2}, 0, 1, 0)}));
  for (uint64_t i : {1, 2}) {
    Orders(Step(7, NodeMessageReceived{StreamId{10 + i}, StoppedFrom({"j", nodes[i], 10 + i, 2})}));
  }
  RestartServer();
  JoinJob(8, 10, spec, 1, "n0");
  Orders(Step(8, NodeMessageReceived{StreamId{10}, StoppedFrom({"j", "n0", 10, 2})}));
  EXPECT_EQ(PhaseOf("j"), v1::GATHERING);
  JoinJob(9, 11, spec, 2, "n1");
  JoinJob(9, 12, spec, 3, "n2");
  EXPECT_EQ(PhaseOf("j"), v1::RUNNING);
  EXPECT_EQ(core_->Status(Second(9), "j")->world_size(), 12u);
}

TEST_F(ClusterTest, AJobDoesNotMissANodeThatWasReplaced) {
  v1::JobSpec spec = Spec("j", 2);
  spec.mutable_restart()->set_max(1);
  spec.mutable_rendezvous()->mutable_join_timeout()->set_seconds(5);
  for (uint64_t i = 1; i <= 3; ++i) Join(1, i, absl::StrCat("n", i));
  Submit(2, spec);
  v1::NodeMessage first = LauncherJoin(10, spec, 1, "n1");
  for (const char* node : {"n1", "n2"}) first.mutable_join()->add_expected_nodes(node);
  Orders(Step(3, NodeMessageReceived{StreamId{10}, first}));
  JoinJob(3, 11, spec, 2, "n2");
  ASSERT_EQ(PhaseOf("j"), v1::RUNNING);
  Orders(Step(4, StreamClosed{StreamId{11}}));
  EXPECT_THAT(Ended(4.02, 2, 2), ElementsAre("start 3 j on n3"));
  Pass(4.05, 4.5);
  Orders(Step(4.5, NodeMessageReceived{StreamId{10}, StoppedFrom({"j", "n1", 10, 1})}));
  ASSERT_EQ(PhaseOf("j"), v1::GATHERING);
  Pass(4.55, 9.6);
  EXPECT_THAT(core_->Status(Second(10), "j")->verdict().message(),
              HasSubstr("1 of 2 nodes joined within 5s: missing 1 (joined: n1)"));
}

TEST_F(ClusterTest, AStatusSaysWhoseAJobIsAndWhereInTheQueue) {
  v1::JobSpec spec = Spec("j", 1);
  spec.set_priority(-3);
  Submit(1, spec);
  Submit(1, Spec("k", 1));
  const v1::JobStatus first = *core_->Status(Second(1), "j");
  EXPECT_EQ(first.user(), "alice");
  EXPECT_EQ(first.priority(), -3);
  EXPECT_LT(first.submission(), core_->Status(Second(1), "k")->submission());
}

// An agent of root would read with root's rights.
TEST_F(ClusterTest, LogsOfAJobThatNobodySubmittedAreNotReadThroughAgents) {
  Join(1, 1, "n0");
  v1::JobSpec spec = Spec("j", 1);
  spec.mutable_logs()->set_dir("/data/logs");
  JoinJob(2, 7, spec, 0, "n0");
  ASSERT_EQ(PhaseOf("j"), v1::RUNNING);
  v1::ReadLogRequest request;
  request.set_job("j");
  request.set_generation(1);
  const absl::Status status = core_->FindLog(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "job j was started by 'cadre run', not submitted to the cluster: its logs are on node "
            "n0, in /data/logs/j/run_19700101T000002.000000Z/generation_1");
}

TEST_F(ClusterTest, LogsAreOfOneRunAndComeToAnEndWithTheLastPart) {
  Join(1, 1, "n0");
  Submit(2, Spec("j", 1));
  v1::NodeMessage message = LauncherJoin(7, Spec("j", 1), 1, "n0");
  Orders(Step(3, NodeMessageReceived{StreamId{7}, message}));
  ASSERT_EQ(PhaseOf("j"), v1::RUNNING);
  v1::ReadLogRequest request;
  request.set_job("j");
  request.set_generation(1);
  request.set_run(core_->Status(Second(3), "j")->run());
  EXPECT_EQ(request.run(), "19700101T000002.000000Z");
  auto source = core_->FindLog(request);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->read.run(), request.run());
  EXPECT_FALSE(source->ended);
  // The verdict may be known before the last output is written.
  Step(4, JobCancelled{"j", "enough"});
  message.clear_join();
  message.set_generation(1);
  message.mutable_node_stopped();
  Step(5, NodeMessageReceived{StreamId{7}, message});
  ASSERT_EQ(PhaseOf("j"), v1::CANCELLED_PHASE);
  EXPECT_EQ(core_->Status(Second(5), "j")->verdict().run(), request.run());
  EXPECT_FALSE(core_->FindLog(request)->ended);
  Step(6, StreamClosed{StreamId{7}});
  Ended(6, 1, 1);
  source = core_->FindLog(request);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_TRUE(source->ended);
  // After a new submission of the same name it has another name, but its files stay where they are.
  const std::string run = core_->Status(Second(7), "j")->run();
  Submit(7, Spec("j", 1));
  request.set_job("j-1");
  source = core_->FindLog(request);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->read.job(), "j");
  EXPECT_EQ(source->read.run(), run);
  request.set_job("j");
  request.set_run(run);
  EXPECT_THAT(std::string(core_->FindLog(request).status().message()),
              HasSubstr("was submitted again"));
}

TEST_F(ClusterTest, TheSameSubmissionAgainIsKnown) {
  Orders(Step(1, JobSubmitted{Spec("j", 1), "alice", "request-1"}));
  EXPECT_TRUE(core_->SubmittedAs("j", "request-1") != nullptr);
  EXPECT_EQ(core_->SubmittedAs("j", "request-2"), nullptr);
  EXPECT_EQ(core_->SubmittedAs("j", ""), nullptr);
  EXPECT_EQ(core_->SubmittedAs("k", "request-1"), nullptr);
  // The same holds once the job has ended, and after a restart of the server.
  Orders(Step(2, JobCancelled{"j", "", 0}));
  RestartServer();
  EXPECT_TRUE(core_->SubmittedAs("j", "request-1") != nullptr);
  Core again(CoreConfig{});
  for (const v1::Record& record : core_->Snapshot()) again.Apply(record);
  EXPECT_TRUE(again.SubmittedAs("j", "request-1") != nullptr);
}

TEST_F(ClusterTest, ALauncherOfAPersonMayNotTakeASubmittedJobsName) {
  Submit(1, Spec("j", 1));
  const auto refusal = [&](int at) {
    const Effects effects = Step(
        at, NodeMessageReceived{StreamId{11}, LauncherJoin(11, Spec("j", 1), 0, "elsewhere")});
    Orders(effects);
    return effects.send.at(0).message.rejected().message();
  };
  EXPECT_THAT(refusal(2), HasSubstr("the cluster chooses its nodes; give this one another name"));
  Orders(Step(3, StreamClosed{StreamId{11}}));
  Orders(Step(3, JobCancelled{"j", "", 0}));
  EXPECT_EQ(refusal(4), "job j was submitted to the cluster by alice; give this one another name");
  EXPECT_EQ(PhaseOf("j"), v1::CANCELLED_PHASE);
}

TEST_F(ClusterTest, MemoryIsCountedOnceANodesAgentSaysHowMuchItHas) {
  constexpr uint64_t kGib = uint64_t{1} << 30;
  const auto spec = [&](const std::string& name) {
    v1::JobSpec made = Spec(name, 1);
    made.mutable_workers_per_node()->set_count(1);
    made.mutable_resources()->set_memory_per_worker(8 * kGib);
    return made;
  };
  // Its agent is of an earlier version.
  Join(1, 1, "n0");
  EXPECT_THAT(Submit(2, spec("j")), ElementsAre("start 1 j on n0"));
  EXPECT_THAT(Submit(3, spec("k")), ElementsAre("start 2 k on n0"));
  Orders(Step(4, StreamClosed{StreamId{1}}));
  Join(5, 2, "n0", {1, 2}, 16 * kGib);
  Submit(6, spec("l"));
  const auto waits = HasSubstr(
      "1 node with 1 CPU and 9 GiB of memory free: 0 are (another has 2 CPUs and 0 GiB of memory)");
  EXPECT_THAT(core_->Status(Second(6), "l")->waiting_for(), waits);
  RestartServer();
  Join(7, 3, "n0", {1, 2}, 16 * kGib);
  EXPECT_THAT(core_->Status(Second(7), "l")->waiting_for(), waits);
  const v1::ClusterNodeStatus node = core_->ClusterNodes().at(0);
  EXPECT_EQ(node.memory(), 16 * kGib);
  EXPECT_EQ(node.parts(0).memory(), 9 * kGib);
  Orders(Step(8, JobCancelled{"j", "", 0}));
  EXPECT_THAT(Ended(8, 3, 1), IsEmpty());
  Orders(Step(9, JobCancelled{"k", "", 0}));
  EXPECT_THAT(Ended(9, 3, 2), ElementsAre("start 3 l on n0"));
}

TEST_F(ClusterTest, AJobThatNeedsMoreMemoryThanAnyNodeHasKeepsNobodyWaiting) {
  Join(1, 1, "n0", {}, uint64_t{16} << 30);
  v1::JobSpec large = Spec("j", 1);
  large.mutable_resources()->set_memory_per_worker(uint64_t{4} << 30);
  EXPECT_THAT(Submit(2, large), IsEmpty());
  EXPECT_THAT(
      *core_->Explain(Second(2), "j"),
      HasSubstr("1 node with 4 CPUs and 17 GiB of memory: 0 of 1 can take it; n0 is too small "
                "(it has 16 GiB of memory)"));
  EXPECT_THAT(Submit(3, Spec("k", 1)), ElementsAre("start 1 k on n0"));
}

TEST_F(ClusterTest, ANodesNameFollowsOneRule) {
  const auto join = [&](const std::string& name) {
    v1::NodeMessage message;
    message.set_incarnation(99);
    message.mutable_agent()->mutable_joined()->set_node(name);
    message.mutable_agent()->mutable_joined()->set_cpus(1);
    *message.mutable_agent()->mutable_joined()->mutable_version() = rpc::ThisVersion();
    const Effects effects = Step(2, NodeMessageReceived{StreamId{99}, message});
    Orders(effects);
    Orders(Step(2, StreamClosed{StreamId{99}}));
    return effects.send.at(0).message.rejected().message();
  };
  Join(1, 1, "Gpu-1.rack_2");
  for (const std::string& name :
       {std::string(), std::string("a\nb"), std::string("a b"), std::string(300, 'a'),
        std::string("-a"), std::string("a,b"), std::string("n\xc3\xa4")}) {
    EXPECT_THAT(join(name), HasSubstr("is not valid: use 1 to 255 of")) << name;
  }
  EXPECT_THAT(join("gpu-1.Rack_2"),
              HasSubstr("differs only in case from that of node Gpu-1.rack_2"));
  EXPECT_EQ(core_->ClusterNodes().size(), 1u);
}

// Launchers of submitted jobs that do not begin, end unasked or are rejected.

class ClusterLaunchersTest : public ClusterRig {
 protected:
  // At second 3 job j, which may fail once, runs on n0, the only node, as its part 1.
  void RunOnTheOnlyNode() {
    Join(1, 1, "n0");
    v1::JobSpec spec = Spec("j", 1);
    spec.mutable_restart()->set_max(1);
    Submit(2, spec);
    JoinJob(3, 10, spec, 1, "n0");
    ASSERT_EQ(PhaseOf("j"), v1::RUNNING);
  }
  // The agent reports that the part could not begin for a reason that may pass. Returns what is
  // ordered next, and after how many seconds.
  std::pair<std::vector<std::string>, double> StartsAgainAfter(double* at, uint64_t part) {
    const double from = *at;
    std::vector<std::string> orders = Ended(from, 1, part, v1::BLAME_NOBODY);
    while (orders.empty() && *at < from + 100) orders = Renew(*at += 0.1, 1);
    return {orders, *at - from};
  }
};

TEST_F(ClusterLaunchersTest, AVerdictSaysHowALauncherEndedThatItsAgentSawEnding) {
  for (const bool started_anew : {false, true}) {
    SCOPED_TRACE(started_anew);
    core_ = std::make_unique<Core>(CoreConfig());
    Join(1, 1, "n0");
    Submit(2, Spec("j", 1));
    JoinJob(3, 7, Spec("j", 1), 1, "n0");
    Orders(Step(4, StreamClosed{StreamId{7}}));
    EXPECT_THAT(Ended(4.02, 1, 1), ElementsAre("start 2 j on n0"));
    if (started_anew) JoinJob(4.04, 8, Spec("j", 1), 2, "n0");
    Orders(Step(4.12, Tick{}));
    EXPECT_EQ(core_->Status(Second(5), "j")->verdict().message(),
              "node n0 is lost in generation 1: its launcher ended: no user alice");
  }
}

// It does not matter whether the launcher or the agent is missed first.
//
// Fault (queue): A cluster's agent is lost whose node is allocated to a job without restarts -> The
// job goes on on another node, or waits for one, and no restart is counted; a launcher's own
// failure and the 17th loss cost a restart
TEST_F(ClusterLaunchersTest, AJobWhoseNodeIsLostWaitsForAnotherAsLongAsItTakes) {
  for (const bool agent_first : {false, true}) {
    SCOPED_TRACE(agent_first);
    core_ = std::make_unique<Core>(CoreConfig());
    v1::JobSpec spec = Spec("j", 1);
    spec.mutable_rendezvous()->mutable_join_timeout()->set_seconds(20);
    Join(1, 1, "n0");
    Submit(2, spec);
    JoinJob(3, 10, spec, 1, "n0");
    ASSERT_EQ(PhaseOf("j"), v1::RUNNING);
    Orders(Step(4, StreamClosed{StreamId{uint64_t{agent_first ? 1u : 10u}}}));
    Orders(Step(4.05, StreamClosed{StreamId{uint64_t{agent_first ? 10u : 1u}}}));
    EXPECT_THAT(Pass(4.1, 60), IsEmpty());
    EXPECT_EQ(PhaseOf("j"), v1::GATHERING);
    EXPECT_THAT(core_->Status(Second(60), "j")->waiting_for(), HasSubstr("1 node with 4 CPUs"));
    EXPECT_THAT(Join(70, 2, "n1"), ElementsAre("start 2 j on n1"));
    Pass(70.05, 80);
    JoinJob(81, 11, spec, 2, "n1");
    EXPECT_EQ(PhaseOf("j"), v1::RUNNING);
    EXPECT_EQ(core_->Status(Second(81), "j")->generation(), 2u);
  }
}

// Other jobs get the nodes that it cannot use until it has all of its nodes again.
//
// Fault (queue): A job that lost a node waits for another one for longer than its `join_timeout` ->
// Other jobs may have the nodes that it keeps meanwhile
TEST_F(ClusterLaunchersTest, AJobThatLostANodeGivesBackTheOthersAfterAWhile) {
  v1::JobSpec spec = Spec("j", 2);
  spec.mutable_rendezvous()->mutable_join_timeout()->set_seconds(20);
  Join(1, 1, "n0");
  Join(1, 2, "n1");
  Submit(2, spec);
  JoinJob(3, 10, spec, 1, "n0");
  JoinJob(3, 11, spec, 2, "n1");
  ASSERT_EQ(PhaseOf("j"), v1::RUNNING);
  for (const uint64_t stream : {2, 11}) Orders(Step(4, StreamClosed{StreamId{stream}}));
  Pass(4.05, 4.2);
  Orders(Step(4.2, NodeMessageReceived{StreamId{10}, StoppedFrom({"j", "n0", 10, 1})}));
  EXPECT_EQ(PhaseOf("j"), v1::GATHERING);
  Submit(5, Spec("k", 1));
  std::vector<std::string> orders;
  for (int second = 5; second < 30; ++second) {
    Renew(second, 1);
    v1::NodeMessage renew = StoppedFrom({"j", "n0", 10, 1});
    renew.mutable_renew();
    Orders(Step(second, NodeMessageReceived{StreamId{10}, renew}));
    for (std::string& order : Pass(second + 0.05, second + 0.95)) orders.push_back(order);
  }
  EXPECT_THAT(orders, ElementsAre("stop 1"));
  Orders(Step(30, StreamClosed{StreamId{10}}));
  EXPECT_THAT(Ended(30, 1, 1), ElementsAre("start 3 k on n0"));
  EXPECT_EQ(PhaseOf("j"), v1::GATHERING);
  Orders(Step(31, JobCancelled{"k", "", 0}));
  EXPECT_THAT(Ended(32, 1, 3), IsEmpty()) << "one is not enough";
  EXPECT_THAT(Join(33, 4, "n1"), ElementsAre("start 4 j on n0", "start 5 j on n1"));
  JoinJob(34, 20, spec, 4, "n0");
  JoinJob(34, 21, spec, 5, "n1");
  EXPECT_EQ(PhaseOf("j"), v1::RUNNING);
}

// Fault (queue): A launcher refuses the spec of a submitted job -> The job fails at once with the
// launcher's last lines
TEST_F(ClusterLaunchersTest, WhatIsTheJobsOwnFaultEndsItAtOnceAndIsSaid) {
  Join(1, 1, "n0");
  Join(1, 2, "n1");
  Submit(2, Spec("j", 1));
  EXPECT_THAT(Ended(3, 1, 1, v1::BLAME_JOB), IsEmpty());
  const v1::JobStatus status = *core_->Status(Second(3), "j");
  EXPECT_EQ(status.phase(), v1::FAILED);
  EXPECT_EQ(status.verdict().exit_status(), 65);
  EXPECT_EQ(status.verdict().message(), "it could not begin on node n0: no user alice");
}

// Fault (queue): A submitted job cannot begin on a node -> That node is avoided for this job, and
// another one is tried
TEST_F(ClusterLaunchersTest, ANodeOnWhichAJobCannotBeginIsAvoidedAndAnotherOneTried) {
  Join(1, 1, "n0");
  Join(1, 2, "n1");
  EXPECT_THAT(Submit(2, Spec("j", 1)), ElementsAre("start 1 j on n0"));
  EXPECT_THAT(Ended(3, 1, 1), ElementsAre("start 2 j on n1"));
  const v1::JobStatus status = *core_->Status(Second(3), "j");
  ASSERT_EQ(status.avoided_size(), 1);
  EXPECT_EQ(status.avoided(0).node(), "n0");
  EXPECT_EQ(status.avoided(0).reason(), "no user alice");
  RestartServer();
  JoinJob(4, 10, Spec("j", 1), 2, "n1");
  EXPECT_EQ(PhaseOf("j"), v1::RUNNING);
  EXPECT_EQ(core_->Status(Second(4), "j")->avoided_size(), 1);
  Core again(CoreConfig{});
  for (const v1::Record& record : core_->Snapshot()) again.Apply(record);
  EXPECT_EQ(again.DebugString(), core_->DebugString());
}

// Fault (queue): A submitted job can begin on none of the nodes -> It fails and says which nodes
// were tried and why each failed
TEST_F(ClusterLaunchersTest, AJobThatNoNodeIsLeftForFailsAndSaysWhatWasTried) {
  Join(1, 1, "n0");
  Join(1, 2, "n1");
  Submit(2, Spec("j", 2));
  // The healthy node is given back.
  EXPECT_THAT(Ended(3, 2, 2), ElementsAre("stop 1"));
  const v1::JobStatus status = *core_->Status(Second(3), "j");
  EXPECT_EQ(status.phase(), v1::FAILED);
  EXPECT_EQ(status.verdict().exit_status(), 75);
  EXPECT_EQ(
      status.verdict().message(),
      "no node is left for it; tried: n1 (no user alice); it needs 1 more node with 4 CPUs: the "
      "only other one cannot take it; n1 is avoided, since it could not begin there");
}

// Fault (queue): A submitted job cannot begin on one node after the other -> It fails after 8
// launchers
TEST_F(ClusterLaunchersTest, AJobIsTriedSoOftenAndNoMore) {
  Join(1, 1, "n0");
  Submit(2, Spec("j", 1));
  double at = 2;
  for (uint64_t part = 1; part < 8; ++part) {
    const auto [orders, seconds] = StartsAgainAfter(&at, part);
    EXPECT_THAT(orders, ElementsAre(absl::StrCat("start ", part + 1, " j on n0")));
    EXPECT_NEAR(seconds, std::min(1 << (part - 1), 60), 0.2) << part;
  }
  EXPECT_THAT(Ended(at, 1, 8, v1::BLAME_NOBODY), IsEmpty());
  EXPECT_THAT(core_->Status(Second(at), "j")->verdict().message(),
              HasSubstr("it was tried 8 times: n0 (no user alice)"));
}

// Fault (queue): A submitted job cannot begin for a reason that may pass: a full disk, too few
// descriptors, an end with 75 -> The node is retried after 1 s, then 2 s, up to a minute, unless
// another node is free; other jobs get it meanwhile
TEST_F(ClusterLaunchersTest, WhatAJobLackedOnANodeMayPass) {
  Join(1, 1, "n0");
  Submit(2, Spec("j", 1));
  EXPECT_THAT(Ended(3, 1, 1, v1::BLAME_NOBODY), IsEmpty());
  EXPECT_EQ(PhaseOf("j"), v1::QUEUED);
  EXPECT_THAT(*core_->Explain(Second(3), "j"), HasSubstr("n0 is tried again in a moment"));
  // Other jobs may use the node.
  EXPECT_THAT(Submit(3.1, Spec("k", 1)), ElementsAre("start 2 k on n0"));
  Orders(Step(3.2, JobCancelled{"k", "", 0}));
  EXPECT_THAT(Ended(3.3, 1, 2), IsEmpty());
  EXPECT_THAT(Pass(3.35, 4.1), ElementsAre("start 3 j on n0"));
  JoinJob(5, 10, Spec("j", 1), 3, "n0");
  EXPECT_EQ(PhaseOf("j"), v1::RUNNING);
}

// A job that has begun is retried for as long as it waits for nodes, with a backoff.
TEST_F(ClusterLaunchersTest, AJobThatHasBegunIsTriedAgainWithPauses) {
  ASSERT_NO_FATAL_FAILURE(RunOnTheOnlyNode());
  Orders(Step(4, StreamClosed{StreamId{10}}));
  EXPECT_THAT(Ended(4.02, 1, 1), ElementsAre("start 2 j on n0"));
  double at = 4.1;
  for (uint64_t part = 2; part < 12; ++part) {
    const auto [orders, seconds] = StartsAgainAfter(&at, part);
    EXPECT_THAT(orders, ElementsAre(absl::StrCat("start ", part + 1, " j on n0")));
    EXPECT_NEAR(seconds, std::min(1 << (part - 2), 60), 0.2) << part;
  }
  EXPECT_EQ(PhaseOf("j"), v1::GATHERING);
}

// Fault (queue): A submitted job loses a node before it begins -> It gives the other nodes back and
// waits in the queue
TEST_F(ClusterLaunchersTest, AJobThatLosesANodeBeforeItBeginsGoesBackIntoTheQueue) {
  for (uint64_t i = 0; i < 3; ++i) Join(1, i + 1, absl::StrCat("n", i));
  Submit(2, Spec("other", 1));
  EXPECT_THAT(Submit(3, Spec("j", 2)), ElementsAre("start 2 j on n1", "start 3 j on n2"));
  JoinJob(4, 10, Spec("j", 2), 2, "n1");
  EXPECT_THAT(Ended(5, 3, 3), ElementsAre("stop 2"));
  v1::NodeMessage leave;
  leave.set_job("j");
  leave.set_incarnation(10);
  leave.mutable_leave()->set_cause(v1::PREEMPTED);
  Orders(Step(6, NodeMessageReceived{StreamId{10}, leave}));
  EXPECT_THAT(Ended(7, 2, 2), IsEmpty());
  EXPECT_EQ(PhaseOf("j"), v1::QUEUED);
  EXPECT_THAT(core_->Status(Second(7), "j")->waiting_for(),
              HasSubstr("2 nodes with 4 CPUs free: 1 is, and it is the next"));
  Orders(Step(8, JobCancelled{"other", "", 0}));
  EXPECT_THAT(Ended(9, 1, 1), ElementsAre("start 4 j on n0", "start 5 j on n1"));
}

TEST_F(ClusterLaunchersTest, ANodeThatIsTakenFromAJobCostsItNoRestart) {
  Join(1, 1, "n0");
  Join(1, 2, "n1");
  Submit(2, Spec("j", 1));
  JoinJob(3, 10, Spec("j", 1), 1, "n0");
  ASSERT_EQ(PhaseOf("j"), v1::RUNNING);
  v1::NodeMessage leave;
  leave.set_job("j");
  leave.set_incarnation(10);
  leave.set_generation(1);
  leave.mutable_leave()->set_cause(v1::PREEMPTED);
  Orders(Step(4, NodeMessageReceived{StreamId{10}, leave}));
  EXPECT_EQ(PhaseOf("j"), v1::GATHERING);
  EXPECT_EQ(core_->Status(Second(4), "j")->restarts(), 0u);
  v1::NodeMessage leaving;
  leaving.mutable_agent()->set_leaving(true);
  EXPECT_THAT(Orders(Step(5, NodeMessageReceived{StreamId{1}, leaving})),
              ElementsAre("start 2 j on n1"));
  // Nor does a launcher that dies without a report that only the launcher ended.
  JoinJob(6, 11, Spec("j", 1), 2, "n1");
  ASSERT_EQ(PhaseOf("j"), v1::RUNNING);
  Orders(Step(7, StreamClosed{StreamId{11}}));
  for (double at = 7.05; at < 7.6; at += 0.05) Orders(Step(at, Tick{}));
  EXPECT_EQ(PhaseOf("j"), v1::GATHERING);
  EXPECT_EQ(core_->Status(Second(8), "j")->restarts(), 0u);
}

// Fault (queue): A launcher of a submitted job stands still -> It is ended, and the job gets
// another node, or the same one when it is free again
TEST_F(ClusterLaunchersTest, ALauncherThatIsGivenUpIsEndedAndTheJobGetsANodeAgain) {
  ASSERT_NO_FATAL_FAILURE(RunOnTheOnlyNode());
  std::vector<std::string> orders;
  for (double at = 3.1; at < 14; at += 0.1) {
    for (std::string& order : Renew(at, 1)) orders.push_back(std::move(order));
  }
  EXPECT_THAT(orders, ElementsAre("stop 1"));
  EXPECT_EQ(PhaseOf("j"), v1::GATHERING);
  // The node is not free before the part has ended.
  EXPECT_EQ(core_->ClusterNodes()[0].parts_size(), 1);
  EXPECT_THAT(Ended(15, 1, 1), ElementsAre("start 2 j on n0"));
}

// Fault (access): A launcher of an allocation that was revoked, or of none, joins a submitted job
// -> It is refused
TEST_F(ClusterLaunchersTest, OnlyTheLaunchersOfItsPartsTakePartInAJob) {
  Join(1, 1, "n0");
  Submit(2, Spec("j", 1));
  const auto join = [&](uint64_t stream, uint64_t part, const std::string& node) {
    const Effects effects = Step(
        3, NodeMessageReceived{StreamId{stream}, LauncherJoin(stream, Spec("j", 1), part, node)});
    Orders(effects);
    return effects.send.front().message.has_rejected()
               ? effects.send.front().message.rejected().message()
               : "";
  };
  EXPECT_THAT(join(10, 0, "n0"), HasSubstr("was submitted to the cluster"));
  EXPECT_THAT(join(11, 9, "n0"), HasSubstr("job j has no part 9 on node n0"));
  EXPECT_THAT(join(12, 1, "n7"), HasSubstr("job j has no part 1 on node n7"));
  EXPECT_EQ(join(13, 1, "n0"), "");
  EXPECT_EQ(PhaseOf("j"), v1::RUNNING);
}

// A spec holds secrets in its env, and a verdict holds output of the program.
TEST_F(ClusterLaunchersTest, AnEndedJobShowsItselfToItsOwnLaunchersOnly) {
  Join(1, 1, "n0");
  v1::JobSpec secret = Spec("j", 1);
  (*secret.mutable_env())["KEY"] = "hidden";
  Submit(2, secret);
  JoinJob(3, 10, secret, 1, "n0");
  Orders(Step(4, JobCancelled{"j", "", 0}));
  v1::NodeMessage stopped;
  stopped.set_job("j");
  stopped.set_incarnation(10);
  stopped.set_generation(1);
  stopped.mutable_node_stopped();
  Orders(Step(5, NodeMessageReceived{StreamId{10}, stopped}));
  Orders(Step(5, StreamClosed{StreamId{10}}));
  ASSERT_EQ(PhaseOf("j"), v1::CANCELLED_PHASE);
  uint64_t stream = 20;
  const auto join = [&](uint64_t incarnation, uint64_t part, uint64_t generation) {
    v1::NodeMessage message = LauncherJoin(incarnation, Spec("j", 1), part, "n0");
    message.set_generation(generation);
    const Effects effects = Step(6, NodeMessageReceived{StreamId{++stream}, message});
    Orders(effects);
    std::string said;
    for (const SendToStream& send : effects.send) said += send.message.ShortDebugString();
    Orders(Step(6, StreamClosed{StreamId{stream}}));
    return said;
  };
  const std::string refused = join(11, 0, 1);
  EXPECT_THAT(refused, HasSubstr("was submitted to the cluster by alice"));
  EXPECT_THAT(refused, Not(HasSubstr("hidden")));
  // A launcher without the incarnation and without a part learns nothing.
  EXPECT_THAT(join(10, 0, 1), Not(HasSubstr("hidden")));
  // Nor does a part of another run of that name.
  EXPECT_THAT(join(11, 9, 1), Not(HasSubstr("hidden")));
  EXPECT_THAT(join(10, 1, 1), HasSubstr("finished"));
  EXPECT_THAT(Ended(7, 1, 1), IsEmpty());
  EXPECT_THAT(join(10, 1, 1), HasSubstr("finished")) << "the node has given its part back";
}

}  // namespace

}  // namespace cadre
