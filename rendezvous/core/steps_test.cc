// Batch jobs and their steps, from their submission to the orders that agents get.
#include <string>
#include <vector>

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

// Nodes n0 and n1 with four CPUs each.
class StepsTest : public ClusterRig {
 protected:
  StepsTest() {
    Join(1, 1, "n0");
    Join(1, 2, "n1");
  }
  v1::JobSpec Batch(uint32_t nodes) {
    v1::JobSpec spec = Spec("b", nodes);
    spec.mutable_batch()->set_script("#!/bin/sh\n");
    return spec;
  }
  v1::JobSpec StepOf(uint32_t nodes, uint32_t workers) {
    v1::JobSpec spec = Spec("step", nodes);
    spec.mutable_workers_per_node()->set_count(workers);
    return spec;
  }
  std::vector<std::string> Begin(double at, const v1::JobSpec& spec,
                                 const std::string& within = "1") {
    EXPECT_EQ(core_->MaySubmit(spec, "alice", within).ToString(), "OK");
    return Orders(this->Step(at, JobSubmitted{spec, "alice", "", within}));
  }
  v1::JobSpec Named(const std::string& name, v1::JobSpec spec) {
    spec.set_name(name);
    return spec;
  }
  std::vector<std::string> Leave(double at, uint64_t stream) {
    v1::NodeMessage leaving;
    leaving.mutable_agent()->set_leaving(true);
    return Orders(this->Step(at, NodeMessageReceived{StreamId{stream}, leaving}));
  }
  std::vector<std::string> Stopped(double at, uint64_t stream, const std::string& job,
                                   const std::string& node) {
    return Orders(
        this->Step(at, NodeMessageReceived{StreamId{stream}, StoppedFrom({job, node, stream, 1})}));
  }
  std::string MessageOf(const std::string& job) {
    return core_->Status(Second(50), job)->verdict().message();
  }
  std::string WhyNot(const v1::JobSpec& spec, const std::string& user, const std::string& within) {
    return std::string(core_->MaySubmit(spec, user, within).message());
  }
  std::string WaitsFor(const std::string& job) {
    return core_->Status(Second(50), job)->waiting_for();
  }
};

TEST_F(StepsTest, AScriptRunsOnTheFirstNodeAndTheOthersAreHeld) {
  EXPECT_THAT(Submit(2, Batch(2)), ElementsAre("start 1 b on n0", "hold 2 b on n1"));
  EXPECT_THAT(core_->Status(Second(2), "b")->allocated(), ElementsAre("n0", "n1"));
  JoinJob(3, 10, Batch(2), 1, "n0");
  EXPECT_EQ(PhaseOf("b"), v1::RUNNING);
  EXPECT_EQ(core_->Status(Second(3), "b")->nodes_in(), 1u);
  // Both nodes are taken.
  EXPECT_THAT(Submit(4, Spec("other", 1)), IsEmpty());
}

TEST_F(StepsTest, StepsShareTheNodesOfTheirJobAndWaitForEachOther) {
  Submit(2, Batch(2));
  EXPECT_THAT(Begin(3, StepOf(2, 2)), ElementsAre("start 3 b-s0 on n0", "start 4 b-s0 on n1"));
  EXPECT_THAT(Begin(4, StepOf(1, 2)), ElementsAre("start 5 b-s1 on n0"));
  EXPECT_THAT(Begin(5, StepOf(2, 1)), IsEmpty());
  EXPECT_EQ(WaitsFor("b-s2"), "2 nodes of job 1: other steps use them");
  v1::JobSpec overlapping = StepOf(1, 4);
  overlapping.mutable_slurm_step()->set_overlap(true);
  EXPECT_THAT(Begin(6, overlapping), ElementsAre("start 6 b-s3 on n0"));
  Orders(this->Step(7, JobCancelled{"b-s1", "", 0}));
  EXPECT_THAT(Ended(8, 1, 5), ElementsAre("start 7 b-s2 on n0", "start 8 b-s2 on n1"));
  const v1::JobStatus status = *core_->Status(Second(9), "b-s2");
  EXPECT_EQ(status.step_of(), 1u);
  EXPECT_EQ(status.step(), 2u);
  EXPECT_EQ(core_->NameOf("1.2", [](absl::string_view) { return true; }), "b-s2");
}

TEST_F(StepsTest, AStepRunsOnTheNodesThatItNames) {
  Submit(2, Batch(2));
  v1::JobSpec spec = StepOf(1, 1);
  spec.mutable_slurm_step()->add_nodes("n1");
  EXPECT_THAT(Begin(3, spec), ElementsAre("start 3 b-s0 on n1"));
  spec.mutable_slurm_step()->set_nodes(0, "n7");
  Begin(4, spec);
  EXPECT_EQ(PhaseOf("b-s1"), v1::FAILED);
  EXPECT_THAT(MessageOf("b-s1"),
              HasSubstr("job 1 has 0 nodes of those asked for that this step could use"));
}

TEST_F(StepsTest, StepsEndWithTheirJob) {
  Submit(2, Batch(1));
  JoinJob(3, 10, Batch(1), 1, "n0");
  EXPECT_THAT(Begin(4, StepOf(1, 4)), ElementsAre("start 2 b-s0 on n0"));
  Begin(4, StepOf(1, 4));
  EXPECT_THAT(Orders(this->Step(5, JobCancelled{"b", "", 0})), ElementsAre("stop 2"));
  EXPECT_EQ(PhaseOf("b"), v1::STOPPING);
  EXPECT_EQ(PhaseOf("b-s0"), v1::CANCELLED_PHASE);
  EXPECT_EQ(PhaseOf("b-s1"), v1::CANCELLED_PHASE);
  EXPECT_EQ(MessageOf("b-s0"), "its batch job is being stopped");
  EXPECT_THAT(WhyNot(StepOf(1, 1), "alice", "1"), HasSubstr("job 1 is being stopped, and no step"));
}

// Fault (queue): A batch job's node is given back while a step still ends there -> What the step
// uses is given to no other job until it has ended
TEST_F(StepsTest, WhatAStepUsesIsNotFreeBeforeItHasEnded) {
  Orders(this->Step(2, NodeDrained{"n1", true, ""}));
  Submit(2, Batch(1));
  Begin(3, StepOf(1, 2));
  Submit(4, Spec("next", 1));
  Orders(this->Step(5, JobCancelled{"b", "", 0}));
  EXPECT_THAT(Ended(6, 1, 1), IsEmpty());
  EXPECT_THAT(Ended(7, 1, 2), ElementsAre("start 3 next on n0"));
}

TEST_F(StepsTest, WhatIsNoStepIsRefused) {
  EXPECT_THAT(WhyNot(StepOf(1, 1), "alice", "7"), HasSubstr("there is no job 7"));
  Orders(this->Step(2, NodeDrained{"n0", true, ""}));
  Submit(2, Batch(2));
  EXPECT_THAT(WhyNot(StepOf(1, 1), "alice", "1"), HasSubstr("waits for its nodes"));
  Orders(this->Step(3, NodeDrained{"n0", false, ""}));
  EXPECT_THAT(WhyNot(StepOf(1, 1), "bob", "1"), HasSubstr("is alice's, not bob's"));
  EXPECT_THAT(WhyNot(StepOf(3, 1), "alice", "1"), HasSubstr("asks for 3 nodes; job 1 has 2 nodes"));
  EXPECT_THAT(WhyNot(Batch(1), "alice", "1"), HasSubstr("cannot be a batch script"));
  Submit(4, Spec("plain", 1));
  EXPECT_THAT(WhyNot(StepOf(1, 1), "alice", "2"), HasSubstr("is no batch job"));
}

// Fault (queue): The server is killed while steps run and wait -> It goes on with both
TEST_F(StepsTest, StepsSurviveTheServer) {
  Submit(2, Batch(2));
  Begin(3, StepOf(1, 4));
  Begin(3, StepOf(2, 4));
  RestartServer();
  EXPECT_THAT(Join(4, 3, "n0", {1, 3}), IsEmpty());
  EXPECT_THAT(Join(4, 4, "n1"), ElementsAre("hold 2 b on n1"));
  Orders(this->Step(5, JobCancelled{"b-s0", "", 0}));
  EXPECT_THAT(Ended(6, 3, 3), ElementsAre("start 4 b-s1 on n0", "start 5 b-s1 on n1"));
  Core again(CoreConfig{});
  for (const v1::Record& record : core_->Snapshot()) again.Apply(record);
  EXPECT_EQ(again.DebugString(), core_->DebugString());
}

// Fault (queue): A node of a batch job is lost -> The job gets another one for its steps
TEST_F(StepsTest, ALostNodeOfABatchJobIsReplaced) {
  Submit(2, Batch(2));
  JoinJob(3, 10, Batch(2), 1, "n0");
  Join(4, 5, "n2");
  EXPECT_THAT(Leave(5, 2), ElementsAre("hold 3 b on n2"));
  EXPECT_EQ(PhaseOf("b"), v1::RUNNING);
}

// Fault (queue): A batch job has more nodes than it needs at least, and another job needs one ->
// The other job waits, as the script counts on its nodes
TEST_F(StepsTest, ABatchJobKeepsTheNodesThatItBeganWith) {
  v1::JobSpec batch = Batch(1);
  batch.mutable_nodes()->set_max(2);
  EXPECT_THAT(Submit(2, batch), ElementsAre("start 1 b on n0", "hold 2 b on n1"));
  JoinJob(3, 10, batch, 1, "n0");
  EXPECT_THAT(Submit(4, Spec("other", 1)), IsEmpty());
  EXPECT_EQ(core_->Status(Second(5), "b")->allocated_size(), 2);
}

// Fault (queue): The node of a batch job's script is lost -> The job gives its other nodes back,
// its steps end, and the script begins again
TEST_F(StepsTest, ABatchJobThatLosesTheNodeOfItsScriptBeginsAgain) {
  v1::JobSpec batch = Batch(1);
  batch.mutable_nodes()->set_max(2);
  EXPECT_THAT(Submit(2, batch), ElementsAre("start 1 b on n0", "hold 2 b on n1"));
  JoinJob(3, 10, batch, 1, "n0");
  v1::JobSpec step = StepOf(1, 4);
  step.mutable_slurm_step()->add_nodes("n1");
  EXPECT_THAT(Begin(4, step), ElementsAre("start 3 b-s0 on n1"));
  EXPECT_THAT(Leave(5, 1), ElementsAre("stop 2"));
  // The node is now the step's alone, and the job needs it.
  EXPECT_THAT(Ended(5.1, 2, 2), ElementsAre("stop 3"));
  EXPECT_EQ(PhaseOf("b-s0"), v1::GATHERING);
  Orders(this->Step(5.2, StreamClosed{StreamId{10}}));
  EXPECT_THAT(Pass(5.25, 6), IsEmpty());
  EXPECT_EQ(PhaseOf("b"), v1::GATHERING);
  EXPECT_EQ(PhaseOf("b-s0"), v1::CANCELLED_PHASE);
  EXPECT_EQ(MessageOf("b-s0"), "its batch job is being stopped");
  EXPECT_THAT(Ended(6.1, 2, 3), ElementsAre("start 4 b on n1"));
}

// Fault (queue): The script of a batch job fails and is restarted while its steps run -> They end,
// since the script that begins again does not know of them
TEST_F(StepsTest, StepsEndWithTheRunOfTheScriptThatBeganThem) {
  v1::JobSpec batch = Batch(1);
  batch.mutable_restart()->set_max(1);
  Submit(2, batch);
  JoinJob(3, 10, batch, 1, "n0");
  EXPECT_THAT(Begin(4, StepOf(1, 4)), ElementsAre("start 2 b-s0 on n0"));
  EXPECT_THAT(Orders(this->Step(
                  5, NodeMessageReceived{StreamId{10}, ExitedFrom({"b", "n0", 10, 1}, 0, 1, 0)})),
              ElementsAre("stop 2"));
  EXPECT_EQ(PhaseOf("b-s0"), v1::CANCELLED_PHASE);
  EXPECT_THAT(Ended(6, 1, 2), IsEmpty());
  Stopped(7, 10, "b", "n0");
  Pass(7.05, 10);
  EXPECT_EQ(PhaseOf("b"), v1::RUNNING);
  EXPECT_THAT(Begin(11, StepOf(1, 4)), ElementsAre("start 3 b-s1 on n0"));
}

// Fault (queue): A node of a step is lost that its batch job does not get back -> The step ends
// once its other nodes have stopped
TEST_F(StepsTest, AStepThatLacksANodeForGoodStopsBeforeItEnds) {
  v1::JobSpec batch = Batch(1);
  batch.mutable_nodes()->set_max(2);
  Submit(2, batch);
  JoinJob(3, 10, batch, 1, "n0");
  EXPECT_THAT(Begin(4, StepOf(2, 4)), ElementsAre("start 3 b-s0 on n0", "start 4 b-s0 on n1"));
  JoinJob(5, 11, Named("b-s0", StepOf(2, 4)), 3, "n0");
  JoinJob(5, 12, Named("b-s0", StepOf(2, 4)), 4, "n1");
  ASSERT_EQ(PhaseOf("b-s0"), v1::RUNNING);
  Leave(6, 2);
  EXPECT_EQ(PhaseOf("b-s0"), v1::RUNNING);
  Orders(this->Step(6.1, StreamClosed{StreamId{12}}));
  Pass(6.15, 7);
  EXPECT_EQ(PhaseOf("b-s0"), v1::STOPPING);
  EXPECT_THAT(Stopped(8, 11, "b-s0", "n0"), ElementsAre("stop 3"));
  EXPECT_EQ(PhaseOf("b-s0"), v1::FAILED);
  EXPECT_EQ(MessageOf("b-s0"), "job 1 has 1 node that this step could use, and it needs 2");
}

// Fault (queue): The agent no longer has what a step is to use, as its batch job has lost the node
// for a moment -> The step is placed there again
TEST_F(StepsTest, AStepIsTriedAgainWhereItFoundNothingOfItsBatchJob) {
  Submit(2, Batch(1));
  EXPECT_THAT(Begin(3, StepOf(1, 4)), ElementsAre("start 2 b-s0 on n0"));
  EXPECT_THAT(Ended(4, 1, 2, v1::BLAME_NOBODY), IsEmpty());
  EXPECT_EQ(PhaseOf("b-s0"), v1::QUEUED);
  Renew(4, 2);
  EXPECT_THAT(Pass(4.05, 5.2), ElementsAre("start 3 b-s0 on n0"));
}

// Fault (state): A batch job ends while the server cannot save -> Its steps end in the same moment
TEST_F(StepsTest, StepsEndWithTheirJobThoughTheServerCannotSave) {
  Submit(2, Batch(1));
  JoinJob(3, 10, Batch(1), 1, "n0");
  Begin(4, StepOf(1, 4));
  Begin(4, StepOf(1, 4));
  Orders(this->Step(5, JobCancelled{"b", "", 0}));
  Orders(this->Step(6, CanSave{false}));
  Stopped(7, 10, "b", "n0");
  EXPECT_EQ(PhaseOf("b"), v1::CANCELLED_PHASE);
  EXPECT_EQ(PhaseOf("b-s0"), v1::CANCELLED_PHASE);
  EXPECT_EQ(PhaseOf("b-s1"), v1::CANCELLED_PHASE);
}

}  // namespace
}  // namespace cadre
