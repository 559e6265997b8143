// Submitted jobs and the agents of a cluster's nodes, at the core's edge.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/testing/cluster_rig.h"
#include "rendezvous/testing/test_messages.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

// Five users may have so many jobs at once. None of them can run here, and one that can waits for
// none of them.
TEST_F(ClusterTest, JobsThatCannotRunKeepNobodyWaitingHoweverManyTheyAre) {
  Join(1, 1, "n0");
  for (int i = 0; i < 5000; ++i) {
    Step(2, JobSubmitted{Spec(absl::StrCat("impossible", i), 99), absl::StrCat("u", i / 1000), ""});
  }
  EXPECT_THAT(Submit(3, Spec("j", 1)), ElementsAre("start 1 j on n0"));
  EXPECT_THAT(core_->Status(Second(3), "impossible4999")->waiting_for(),
              HasSubstr("99 nodes with 4 CPUs: the cluster has only 1"));
  // They are looked at again once there are other nodes, and after a server that began anew.
  Orders(Step(4, JobCancelled{"j", "", 0}));
  Ended(4, 1, 1);
  Submit(4, Spec("two", 2));
  EXPECT_THAT(core_->Status(Second(4), "two")->waiting_for(), HasSubstr("the cluster has only 1"));
  EXPECT_THAT(Join(5, 2, "n1"), ElementsAre("start 2 two on n0", "start 3 two on n1"));
}

// The same where nodes are there that they cannot use: a job that avoids a node in vain.
TEST_F(ClusterTest, AJobThatWasSetAsideIsCancelledAndItsNameGivenAnew) {
  Join(1, 1, "n0");
  Submit(2, Spec("j", 2));
  Orders(Step(3, JobCancelled{"j", "", 0}));
  EXPECT_THAT(Submit(4, Spec("j", 1)), ElementsAre("start 1 j on n0"));
  Submit(5, Spec("k", 2));
  StartAnew();
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
  EXPECT_EQ(core_->MaySubmit(Spec("j", 1), "alice").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Ended(5, 1, 1), ElementsAre("start 2 l on n0"));
  EXPECT_TRUE(core_->MaySubmit(Spec("j", 1), "alice").ok());
}

TEST_F(ClusterTest, TheQueueSurvivesTheServerAndSoDoesWhatWasPlaced) {
  Join(1, 1, "n0");
  Join(1, 2, "n1");
  Submit(2, Spec("j", 1));
  Submit(2, Spec("k", 2));
  Orders(Step(3, NodeDrained{"n1", true, "fan"}));
  Orders(Step(3, NodeDrained{"n1", true, ""}));
  StartAnew();
  EXPECT_EQ(core_->NextDeadline(), MonoTime());
  Orders(Step(4, Tick{}));
  EXPECT_EQ(PhaseOf("k"), v1::QUEUED);
  // It starts what was ordered and may never have been heard, and leaves alone what runs.
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

// How long a job waited in the queue is no part of its timeline, which begins when it gets its
// nodes.
TEST_F(ClusterTest, AJobThatWasQueuedWhenTheServerBeganAnewShowsItsFirstProgress) {
  Submit(1, Spec("j", 1));
  StartAnew();
  Orders(Step(7200, Tick{}));
  Join(7201, 1, "n0");
  JoinJob(7202, 7, Spec("j", 1), 1, "n0");
  v1::NodeMessage message;
  message.set_job("j");
  message.set_incarnation(7);
  message.set_generation(1);
  for (uint32_t local_rank = 0; local_rank < 4; ++local_rank) {
    message.mutable_worker_started()->set_local_rank(local_rank);
    Orders(Step(7203, NodeSaid{StreamId{7}, message}));
  }
  message.mutable_progress()->set_workers(4);
  Orders(Step(7204, NodeSaid{StreamId{7}, message}));
  const v1::Timeline timeline = core_->Status(Second(7204), "j")->timeline();
  ASSERT_EQ(timeline.generations_size(), 1);
  EXPECT_EQ(timeline.generations(0).running_us(), 2000000);
  EXPECT_EQ(timeline.generations(0).first_progress_us(), 3000000);
}

TEST_F(ClusterTest, AServerThatBeganAnewWaitsForItsAgentsBeforeItGivesNodesAway) {
  Join(1, 1, "n0");
  Join(1, 2, "n1");
  Submit(2, Spec("small", 1));
  Submit(3, Spec("first", 2));
  Submit(4, Spec("second", 1));
  StartAnew();
  Orders(Step(5, Tick{}));
  EXPECT_THAT(Join(6, 8, "n1"), IsEmpty());
  // n0 does not come: what it had counts no more. `first` cannot be placed, `second` can, and the
  // node that `small` had is made up for first.
  EXPECT_THAT(Pass(6.5, 14.9), IsEmpty());
  EXPECT_THAT(Pass(14.95, 15.1), ElementsAre("start 2 small on n1"));
}

TEST_F(ClusterTest, AnAgentThatIsLostGivesItsPartsUpAndStopsThemWhenItComesBack) {
  Join(1, 1, "n0");
  Submit(2, Spec("j", 1));
  Orders(Step(3, StreamClosed{StreamId{1}}));
  Pass(3.5, 13.5);
  EXPECT_THAT(core_->ClusterNodes()[0].parts(), IsEmpty());
  EXPECT_FALSE(core_->ClusterNodes()[0].connected());
  EXPECT_THAT(Join(14, 2, "n0", {1}), ElementsAre("stop 1"));
  // Nothing new until that is gone.
  EXPECT_EQ(core_->ClusterNodes()[0].leftovers(), 1u);
  EXPECT_THAT(core_->Status(Second(14), "j")->waiting_for(),
              HasSubstr("n0 is still ending an earlier job"));
  EXPECT_THAT(Ended(15, 2, 1), ElementsAre("start 2 j on n0"));
  EXPECT_EQ(core_->ClusterNodes()[0].leftovers(), 0u);
}

// Nobody is let in meanwhile.
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

// Whom the first launcher's list names is all there was when it was started.
TEST_F(ClusterTest, AJobThatHasGrownDoesNotFormAgainWithThoseItBeganWith) {
  v1::JobSpec spec = Spec("j", 1, 3);
  spec.mutable_restart()->set_max(1);
  spec.mutable_elastic()->set_scale_up(v1::ElasticPolicy::IMMEDIATELY);
  Join(1, 1, "n0");
  Submit(2, spec);
  v1::NodeMessage first = LauncherJoin(10, spec, 1, "n0");
  first.mutable_join()->add_expected_nodes("n0");
  Orders(Step(3, NodeSaid{StreamId{10}, first}));
  ASSERT_EQ(PhaseOf("j"), v1::RUNNING);
  const std::string nodes[] = {"n0", "n1", "n2"};
  for (uint64_t i : {1, 2}) {
    Join(4, i + 1, nodes[i]);
    JoinJob(5, 10 + i, spec, i + 1, nodes[i]);
  }
  Orders(Step(6, NodeSaid{StreamId{10}, StoppedFrom({"j", "n0", 10, 1})}));
  ASSERT_EQ(core_->Status(Second(6), "j")->world_size(), 12u);
  Orders(Step(7, NodeSaid{StreamId{10}, ExitedFrom({"j", "n0", 10, 2}, 0, 1, 0)}));
  for (uint64_t i : {1, 2}) {
    Orders(Step(7, NodeSaid{StreamId{10 + i}, StoppedFrom({"j", nodes[i], 10 + i, 2})}));
  }
  StartAnew();
  JoinJob(8, 10, spec, 1, "n0");
  Orders(Step(8, NodeSaid{StreamId{10}, StoppedFrom({"j", "n0", 10, 2})}));
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
  Orders(Step(3, NodeSaid{StreamId{10}, first}));
  JoinJob(3, 11, spec, 2, "n2");
  ASSERT_EQ(PhaseOf("j"), v1::RUNNING);
  Orders(Step(4, StreamClosed{StreamId{11}}));
  EXPECT_THAT(Ended(4.02, 2, 2), ElementsAre("start 3 j on n3"));
  Pass(4.05, 4.5);
  Orders(Step(4.5, NodeSaid{StreamId{10}, StoppedFrom({"j", "n1", 10, 1})}));
  ASSERT_EQ(PhaseOf("j"), v1::GATHERING);
  Pass(4.55, 9.6);
  EXPECT_THAT(core_->Status(Second(10), "j")->verdict().message(),
              HasSubstr("1 of 2 nodes came within 5s: missing 1 (here: n1)"));
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

// A root's agent would read with root's rights.
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
  Orders(Step(3, NodeSaid{StreamId{7}, message}));
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
  // The verdict comes before the last of the output.
  Step(4, JobCancelled{"j", "enough"});
  message.clear_join();
  message.set_generation(1);
  message.mutable_node_stopped();
  Step(5, NodeSaid{StreamId{7}, message});
  ASSERT_EQ(PhaseOf("j"), v1::CANCELLED_PHASE);
  EXPECT_EQ(core_->Status(Second(5), "j")->verdict().run(), request.run());
  EXPECT_FALSE(core_->FindLog(request)->ended);
  Step(6, StreamClosed{StreamId{7}});
  Ended(6, 1, 1);
  source = core_->FindLog(request);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_TRUE(source->ended);
  // The same name again is another run.
  Submit(7, Spec("j", 1));
  const absl::Status status = core_->FindLog(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("was submitted again"));
}

TEST_F(ClusterTest, TheSameSubmissionAgainIsKnown) {
  Orders(Step(1, JobSubmitted{Spec("j", 1), "alice", "request-1"}));
  EXPECT_TRUE(core_->WasSubmitted("j", "request-1"));
  EXPECT_FALSE(core_->WasSubmitted("j", "request-2"));
  EXPECT_FALSE(core_->WasSubmitted("j", ""));
  EXPECT_FALSE(core_->WasSubmitted("k", "request-1"));
  // Also once it has ended, and after the server.
  Orders(Step(2, JobCancelled{"j", "", 0}));
  StartAnew();
  EXPECT_TRUE(core_->WasSubmitted("j", "request-1"));
  Core again(CoreConfig{});
  for (const v1::Record& record : core_->Snapshot()) again.Apply(record);
  EXPECT_TRUE(again.WasSubmitted("j", "request-1"));
}

TEST_F(ClusterTest, WhoseANameIsAndSinceWhen) {
  Submit(1, Spec("j", 1));
  const auto refused = [&] {
    const absl::Status status = core_->RefuseName("j");
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
    return std::string(status.message());
  };
  EXPECT_EQ(refused(), "job j is alice's: it has not ended (queued); take another name");
  Orders(Step(2, JobCancelled{"j", "", 0}));
  EXPECT_EQ(refused(),
            "job j is alice's: it ended before it ran, and keeps its name; take another name");
  Join(3, 1, "n0");
  Submit(4, Spec("j", 1));
  JoinJob(5, 10, Spec("j", 1), 1, "n0");
  Orders(Step(6, JobCancelled{"j", "", 0}));
  v1::NodeMessage stopped;
  stopped.set_job("j");
  stopped.set_incarnation(10);
  stopped.set_generation(1);
  stopped.mutable_node_stopped();
  Orders(Step(7, NodeSaid{StreamId{10}, stopped}));
  ASSERT_EQ(PhaseOf("j"), v1::CANCELLED_PHASE);
  EXPECT_EQ(refused(),
            "job j is alice's: it ran until 1970-01-01 00:00:07 UTC and keeps its name; take "
            "another name");
  // Nor is it taken by a launcher that somebody starts by hand.
  Orders(Step(8, StreamClosed{StreamId{10}}));
  Ended(8, 1, 1);
  const Effects effects =
      Step(9, NodeSaid{StreamId{11}, LauncherJoin(11, Spec("j", 1), 0, "elsewhere")});
  Orders(effects);
  EXPECT_EQ(effects.send.at(0).message.rejected().message(),
            "job j was submitted to the cluster by alice; give this one another name");
  EXPECT_EQ(PhaseOf("j"), v1::CANCELLED_PHASE);
}

TEST_F(ClusterTest, ANodesNameFollowsOneRule) {
  const auto join = [&](const std::string& name) {
    v1::NodeMessage message;
    message.set_incarnation(99);
    message.mutable_agent()->mutable_joined()->set_node(name);
    message.mutable_agent()->mutable_joined()->set_cpus(1);
    const Effects effects = Step(2, NodeSaid{StreamId{99}, message});
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

}  // namespace
}  // namespace cadre
