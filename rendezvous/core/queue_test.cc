// Jobs of the queue that may not begin yet, that users change, and that go back into the queue.
#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/testing/cluster_rig.h"
#include "rendezvous/testing/test_messages.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Nodes n0 and n1 with four CPUs each. Jobs take whole nodes.
class QueueTest : public ClusterRig {
 protected:
  QueueTest() {
    Join(1, 1, "n0");
    Join(1, 2, "n1");
  }
  v1::JobSpec After(const std::string& name, v1::Dependency::Kind kind, uint64_t job) {
    v1::JobSpec spec = Spec(name, 1);
    v1::Dependency* dependency = spec.mutable_queue()->add_dependencies();
    dependency->set_kind(kind);
    dependency->set_job(job);
    return spec;
  }
  std::vector<std::string> SubmitArray(double at, const v1::JobSpec& spec,
                                       const std::vector<uint32_t>& indices, uint32_t at_once) {
    v1::ArrayElements array;
    for (const uint32_t index : indices) array.add_indices(index);
    array.set_at_once(at_once);
    EXPECT_EQ(core_->MaySubmit(spec, "alice", "", array).ToString(), "OK");
    return Orders(this->Step(at, JobSubmitted{spec, "alice", "", "", array}));
  }
  std::vector<std::string> Update(double at, const std::string& job, const v1::JobUpdate& update) {
    EXPECT_EQ(core_->MayUpdate(job, update, true).ToString(), "OK");
    return Orders(this->Step(at, JobUpdated{job, update}));
  }
  std::vector<std::string> Hold(double at, const std::string& job, bool held) {
    v1::JobUpdate update;
    update.set_held(held);
    return Update(at, job, update);
  }
  std::vector<std::string> Cancel(double at, const std::string& job) {
    return Orders(this->Step(at, JobCancelled{job, "", 0}));
  }
  std::vector<std::string> Stopped(double at, uint64_t stream, const std::string& job,
                                   const std::string& node) {
    return Orders(
        this->Step(at, NodeMessageReceived{StreamId{stream}, StoppedFrom({job, node, stream, 1})}));
  }
  // The only worker of the job has ended with this status.
  std::vector<std::string> Exited(double at, uint64_t stream, const std::string& job,
                                  const std::string& node, int status) {
    std::vector<std::string> orders;
    for (uint32_t rank = 0; rank < 4; ++rank) {
      for (std::string& order : Orders(this->Step(
               at, NodeMessageReceived{StreamId{stream},
                                       ExitedFrom({job, node, stream, 1}, rank, status, 0)}))) {
        orders.push_back(std::move(order));
      }
    }
    return orders;
  }
  std::vector<std::string> Agent(double at, uint64_t stream, v1::AgentReport report) {
    v1::NodeMessage message;
    *message.mutable_agent() = std::move(report);
    return Orders(this->Step(at, NodeMessageReceived{StreamId{stream}, message}));
  }
  // The signals that launchers are told to send: "10 to 20" (signal 10, stream 20).
  std::vector<std::string> Signals(const Effects& effects) {
    std::vector<std::string> signals;
    for (const SendToStream& send : effects.send) {
      if (!send.message.has_signal()) continue;
      signals.push_back(absl::StrCat(send.message.signal().signal(), " to ", send.stream.value));
    }
    Orders(effects);
    return signals;
  }
  v1::JobStatus StatusOf(const std::string& job) { return *core_->Status(Second(50), Called(job)); }
  std::string ReasonOf(const std::string& job) { return StatusOf(job).queue_reason(); }
  std::string Called(const std::string& text) {
    return core_->NameOf(text, [](absl::string_view) { return true; });
  }
};

TEST_F(QueueTest, AHeldJobWaitsForItsRelease) {
  v1::JobSpec spec = Spec("a", 1);
  spec.mutable_queue()->set_held(true);
  EXPECT_THAT(Submit(2, spec), IsEmpty());
  EXPECT_EQ(ReasonOf("a"), "JobHeldUser");
  EXPECT_EQ(StatusOf("a").waiting_for(), "its release: it is held");
  EXPECT_THAT(Submit(3, Spec("b", 2)), ElementsAre("start 1 b on n0", "start 2 b on n1"));
  Hold(4, "a", false);
  EXPECT_EQ(ReasonOf("a"), "Resources");
  Cancel(5, "b");
  EXPECT_THAT(Ended(6, 1, 1), ElementsAre("start 3 a on n0"));
}

TEST_F(QueueTest, AHoldOutlivesTheServer) {
  Submit(2, Spec("b", 2));
  Submit(3, Spec("a", 1));
  Hold(4, "a", true);
  RestartServer();
  Join(5, 3, "n0", {1});
  Join(5, 4, "n1", {2});
  Cancel(6, "b");
  EXPECT_THAT(Ended(7, 3, 1), IsEmpty());
  EXPECT_TRUE(StatusOf("a").held());
  EXPECT_THAT(Hold(8, "a", false), ElementsAre("start 3 a on n0"));
  Core again(CoreConfig{});
  for (const v1::Record& record : core_->Snapshot()) again.Apply(record);
  EXPECT_EQ(again.DebugString(), core_->DebugString());
}

TEST_F(QueueTest, AJobBeginsAtItsTime) {
  v1::JobSpec spec = Spec("a", 1);
  spec.mutable_queue()->set_begin_unix_ms(5000);
  EXPECT_THAT(Submit(2, spec), IsEmpty());
  EXPECT_EQ(core_->Status(Second(2), "a")->queue_reason(), "BeginTime");
  EXPECT_LE(core_->NextDeadline(), Second(5));
  EXPECT_THAT(Pass(2.05, 4.95), IsEmpty());
  EXPECT_THAT(Pass(5, 5.1), ElementsAre("start 1 a on n0"));
}

TEST_F(QueueTest, AJobThatHasNotEndedByItsDeadlineIsEnded) {
  v1::JobSpec spec = Spec("a", 1);
  spec.mutable_queue()->set_deadline_unix_ms(4000);
  Submit(2, Spec("b", 2));
  EXPECT_THAT(Submit(2, spec), IsEmpty());
  Pass(2.05, 3.9);
  EXPECT_EQ(PhaseOf("a"), v1::QUEUED);
  Pass(3.95, 4.1);
  EXPECT_EQ(PhaseOf("a"), v1::FAILED);
  EXPECT_EQ(StatusOf("a").verdict().message(), "its deadline has passed");
}

TEST_F(QueueTest, AJobWaitsForAnotherToSucceed) {
  Submit(2, Spec("first", 1));
  JoinJob(3, 10, Spec("first", 1), 1, "n0");
  EXPECT_THAT(Submit(3, After("then", v1::Dependency::AFTER_OK, 1)), IsEmpty());
  EXPECT_THAT(Submit(3, After("anyway", v1::Dependency::AFTER_ANY, 1)), IsEmpty());
  EXPECT_EQ(ReasonOf("then"), "Dependency");
  EXPECT_EQ(StatusOf("then").waiting_for(), "job 1 to succeed");
  EXPECT_EQ(StatusOf("anyway").waiting_for(), "job 1 to end");
  // One takes the free node, the other that of the job, which has not given it back yet.
  EXPECT_THAT(Exited(4, 10, "first", "n0", 0), ElementsAre("stop 1", "start 2 then on n1"));
  EXPECT_THAT(Ended(5, 1, 1), ElementsAre("start 3 anyway on n0"));
}

// Fault (queue): The job on which another depends fails -> That one is cancelled with the reason,
// or stays in the queue if its user said so
TEST_F(QueueTest, WhatCanNeverBeginIsCancelledOrKept) {
  Submit(2, Spec("first", 1));
  Submit(3, After("then", v1::Dependency::AFTER_OK, 1));
  v1::JobSpec kept = After("kept", v1::Dependency::AFTER_OK, 1);
  kept.mutable_queue()->set_keep_if_never(true);
  Submit(3, kept);
  v1::JobSpec any = After("any", v1::Dependency::AFTER_OK, 1);
  any.mutable_queue()->add_dependencies()->set_kind(v1::Dependency::SINGLETON);
  any.mutable_queue()->set_any_dependency(true);
  EXPECT_THAT(Submit(3, any), ElementsAre("start 2 any on n1"));
  EXPECT_THAT(Submit(3, After("mourner", v1::Dependency::AFTER_NOT_OK, 1)), IsEmpty());
  Cancel(4, "first");
  EXPECT_EQ(PhaseOf("then"), v1::CANCELLED_PHASE);
  EXPECT_EQ(StatusOf("then").verdict().message(),
            "it waited for what can never be: job 1 to succeed");
  EXPECT_EQ(PhaseOf("kept"), v1::QUEUED);
  EXPECT_EQ(ReasonOf("kept"), "DependencyNeverSatisfied");
  EXPECT_THAT(Ended(5, 1, 1), ElementsAre("start 3 mourner on n0"));
}

TEST_F(QueueTest, OfOneNameOneRunsAtATime) {
  v1::JobSpec spec = Spec("a", 1);
  spec.mutable_queue()->add_dependencies()->set_kind(v1::Dependency::SINGLETON);
  EXPECT_THAT(Submit(2, spec), ElementsAre("start 1 a on n0"));
  EXPECT_THAT(Submit(3, spec), IsEmpty());
  EXPECT_EQ(StatusOf("2").waiting_for(), "job 1 of the same name to end");
  Cancel(4, "a");
  EXPECT_EQ(PhaseOf("a-2"), v1::GATHERING);
}

TEST_F(QueueTest, DependenciesOnWhatIsNoJobAreRefused) {
  Submit(2, Spec("first", 1));
  EXPECT_EQ(core_->MaySubmit(After("a", v1::Dependency::AFTER_OK, 2), "alice").message(),
            "the job cannot depend on job 2: there is no such job (the last one has id 1)");
  EXPECT_THAT(
      std::string(core_->MaySubmit(After("a", v1::Dependency::SINGLETON, 1), "alice").message()),
      HasSubstr("each of queue.dependencies needs a kind"));
}

TEST_F(QueueTest, AnArrayIsAJobForEachIndex) {
  EXPECT_THAT(SubmitArray(2, Spec("a", 1), {3, 5, 9}, 0),
              ElementsAre("start 1 a on n0", "start 2 a-2 on n1"));
  EXPECT_EQ(Called("1_5"), "a-2");
  EXPECT_EQ(Called("1_9"), "a-3");
  EXPECT_EQ(Called("1_4"), "1_4");
  const v1::JobStatus last = StatusOf("a-3");
  EXPECT_EQ(last.array(), 1u);
  EXPECT_EQ(last.array_index(), 9u);
  EXPECT_EQ(last.array_size(), 3u);
  EXPECT_EQ(*core_->LastSubmitted(), "a");
}

TEST_F(QueueTest, OfAnArrayNoMoreElementsRunThanItAllows) {
  v1::JobSpec spec = Spec("a", 1);
  spec.mutable_workers_per_node()->set_count(1);
  EXPECT_THAT(SubmitArray(2, spec, {0, 1, 2, 3}, 2),
              ElementsAre("start 1 a on n0", "start 2 a-2 on n0"));
  EXPECT_EQ(ReasonOf("a-3"), "JobArrayTaskLimit");
  Cancel(3, "a");
  EXPECT_THAT(Ended(4, 1, 1), ElementsAre());
  EXPECT_EQ(PhaseOf("a-3"), v1::GATHERING);
  EXPECT_EQ(ReasonOf("a-4"), "JobArrayTaskLimit");
}

TEST_F(QueueTest, AJobWaitsForAllElementsOrForItsOwn) {
  SubmitArray(2, Spec("a", 1), {1, 2}, 0);
  Submit(3, After("all", v1::Dependency::AFTER_ANY, 1));
  SubmitArray(3, After("each", v1::Dependency::AFTER_CORRESPONDING, 1), {1, 2}, 0);
  JoinJob(4, 10, Spec("a-2", 1), 2, "n1");
  Exited(5, 10, "a-2", "n1", 0);
  EXPECT_THAT(Ended(6, 2, 2), ElementsAre("start 3 each-5 on n1"));
  EXPECT_EQ(ReasonOf("all"), "Dependency");
}

TEST_F(QueueTest, AUserChangesWhatWaits) {
  Submit(2, Spec("first", 2));
  Submit(3, Spec("a", 1));
  Submit(3, Spec("b", 1));
  v1::JobUpdate update;
  update.set_priority(7);
  EXPECT_EQ(core_->MayUpdate("b", update, false).code(), absl::StatusCode::kPermissionDenied);
  Update(4, "b", update);
  update = {};
  update.mutable_limit()->set_seconds(60);
  update.mutable_placement()->add_nodes("n1");
  Update(5, "b", update);
  EXPECT_EQ(StatusOf("b").limit_us(), 60000000);
  Cancel(6, "first");
  // It is not the node that b wants.
  EXPECT_THAT(Ended(7, 1, 1), ElementsAre("start 3 a on n0"));
  EXPECT_THAT(Ended(8, 2, 2), ElementsAre("start 4 b on n1"));
  EXPECT_THAT(std::string(core_->MayUpdate("b", update, false).message()),
              HasSubstr("has begun, and this can be changed only while it waits"));
  update.clear_placement();
  update.mutable_limit()->set_seconds(61);
  EXPECT_EQ(core_->MayUpdate("b", update, false).code(), absl::StatusCode::kPermissionDenied);
  update.mutable_limit()->set_seconds(59);
  EXPECT_EQ(core_->MayUpdate("b", update, false).ToString(), "OK");
}

TEST_F(QueueTest, AJobThatIsPutBackGivesItsNodesAndBeginsAgain) {
  Submit(2, Spec("a", 1));
  JoinJob(3, 10, Spec("a", 1), 1, "n0");
  ASSERT_EQ(PhaseOf("a"), v1::RUNNING);
  Orders(this->Step(4, JobRequeued{"a", "by alice"}));
  EXPECT_EQ(PhaseOf("a"), v1::STOPPING);
  EXPECT_THAT(Stopped(5, 10, "a", "n0"), ElementsAre("stop 1"));
  EXPECT_EQ(PhaseOf("a"), v1::GATHERING);
  EXPECT_EQ(StatusOf("a").waiting_for(),
            "its launchers to end, since it was put back into the queue");
  Orders(this->Step(5.5, StreamClosed{StreamId{10}}));
  EXPECT_THAT(Ended(6, 1, 1), ElementsAre("start 2 a on n0"));
  JoinJob(7, 11, Spec("a", 1), 2, "n0");
  EXPECT_EQ(PhaseOf("a"), v1::RUNNING);
  EXPECT_EQ(StatusOf("a").restarts(), 0u);
  EXPECT_EQ(StatusOf("a").generation(), 2u);
}

// Fault (queue): The server is killed while a job that was put back gives up its nodes -> The job
// is in the queue afterwards
TEST_F(QueueTest, APutBackJobOutlivesTheServer) {
  Submit(2, Spec("a", 1));
  JoinJob(3, 10, Spec("a", 1), 1, "n0");
  Orders(this->Step(4, JobRequeued{"a", "", true}));
  Stopped(5, 10, "a", "n0");
  RestartServer();
  EXPECT_THAT(Join(6, 3, "n0", {1}), ElementsAre("stop 1"));
  Join(6, 4, "n1");
  EXPECT_THAT(Ended(7, 3, 1), IsEmpty());
  EXPECT_EQ(PhaseOf("a"), v1::QUEUED);
  EXPECT_EQ(ReasonOf("a"), "JobHeldUser");
  EXPECT_THAT(Hold(8, "a", false), ElementsAre("start 2 a on n0"));
}

TEST_F(QueueTest, AJobThatIsBeingPutBackCanBeCancelled) {
  Submit(2, Spec("a", 1));
  JoinJob(3, 10, Spec("a", 1), 1, "n0");
  Orders(this->Step(4, JobRequeued{"a", ""}));
  Cancel(4.5, "a");
  Stopped(5, 10, "a", "n0");
  EXPECT_EQ(PhaseOf("a"), v1::CANCELLED_PHASE);
}

TEST_F(QueueTest, AJobThatGivesItsNodesBackCanBeCancelled) {
  Submit(2, Spec("a", 1));
  JoinJob(3, 10, Spec("a", 1), 1, "n0");
  Orders(this->Step(4, JobRequeued{"a", ""}));
  Stopped(5, 10, "a", "n0");
  Cancel(6, "a");
  EXPECT_THAT(Ended(7, 1, 1), IsEmpty());
  EXPECT_EQ(PhaseOf("a"), v1::CANCELLED_PHASE);
}

TEST_F(QueueTest, AJobThatGathersGoesBackAtOnceIfItHasNoLauncher) {
  Submit(2, Spec("a", 1));
  EXPECT_THAT(Orders(this->Step(3, JobRequeued{"a", "", true})), ElementsAre("stop 1"));
  EXPECT_THAT(Ended(4, 1, 1), IsEmpty());
  EXPECT_EQ(PhaseOf("a"), v1::QUEUED);
}

TEST_F(QueueTest, OnlyWhatWasSubmittedGoesBack) {
  EXPECT_EQ(core_->MayRequeue("a").code(), absl::StatusCode::kNotFound);
  Submit(2, Spec("a", 1));
  EXPECT_EQ(core_->MayRequeue("a").ToString(), "OK");
  Cancel(3, "a");
  EXPECT_EQ(core_->MayRequeue("a").message(), "job a has ended; submit it again");
}

// Fault (queue): A node of a job is lost that was submitted with --no-requeue -> The job fails
TEST_F(QueueTest, ALostNodeEndsAJobThatIsNotToGoOn) {
  v1::JobSpec spec = Spec("a", 1);
  spec.mutable_restart()->set_requeue(false);
  Submit(2, spec);
  JoinJob(3, 10, spec, 1, "n0");
  v1::AgentReport leaving;
  leaving.set_leaving(true);
  EXPECT_THAT(Agent(4, 1, leaving), IsEmpty());
  Orders(this->Step(4.1, StreamClosed{StreamId{10}}));
  EXPECT_THAT(Pass(4.15, 5), IsEmpty());
  EXPECT_EQ(PhaseOf("a"), v1::FAILED);
  EXPECT_THAT(StatusOf("a").verdict().message(), HasSubstr("--no-requeue"));
}

TEST_F(QueueTest, SignalsReachTheWorkersOfAJob) {
  Submit(2, Spec("a", 2));
  JoinJob(3, 10, Spec("a", 2), 1, "n0");
  EXPECT_THAT(std::string(core_->MaySignal("a", SIGUSR1).message()),
              HasSubstr("has no workers that run"));
  JoinJob(3, 11, Spec("a", 2), 2, "n1");
  EXPECT_EQ(core_->MaySignal("a", SIGUSR1).ToString(), "OK");
  EXPECT_EQ(core_->MaySignal("a", SIGKILL).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(core_->MaySignal("a", 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Signals(this->Step(4, JobSignalled{"a", SIGUSR1})),
              ElementsAre("10 to 10", "10 to 11"));
}

TEST_F(QueueTest, WorkersAreWarnedBeforeTheTimeOfTheirJobEnds) {
  v1::JobSpec spec = Spec("a", 1);
  spec.mutable_timeouts()->mutable_total()->set_seconds(10);
  spec.mutable_timeouts()->mutable_warning()->set_seconds(4);
  spec.mutable_timeouts()->set_warning_signal(SIGUSR2);
  Submit(2, spec);
  JoinJob(3, 10, spec, 1, "n0");
  for (uint32_t rank = 0; rank < 4; ++rank) {
    Orders(this->Step(3, NodeMessageReceived{StreamId{10}, StartedFrom({"a", "n0", 10, 1}, rank)}));
  }
  std::vector<std::string> signals;
  for (double at = 3.05; at < 9; at += 0.05) {
    for (const std::string& signal : Signals(this->Step(at, Tick{}))) {
      EXPECT_NEAR(at, 8, 0.1);
      signals.push_back(signal);
    }
  }
  EXPECT_THAT(signals, ElementsAre("12 to 10"));
  EXPECT_EQ(PhaseOf("a"), v1::RUNNING);
}

TEST_F(QueueTest, AJobGetsTheNodesThatItNames) {
  v1::JobSpec spec = Spec("a", 1);
  spec.mutable_placement()->add_nodes("n1");
  EXPECT_THAT(Submit(2, spec), ElementsAre("start 1 a on n1"));
  EXPECT_THAT(Submit(3, spec), IsEmpty());
  EXPECT_EQ(ReasonOf("a-2"), "Resources");
  v1::JobSpec other = Spec("b", 1);
  other.mutable_placement()->add_exclude("n0");
  EXPECT_THAT(Submit(4, other), IsEmpty());
  other.mutable_placement()->add_exclude("n1");
  other.set_name("c");
  Submit(5, other);
  EXPECT_EQ(ReasonOf("c"), "ReqNodeNotAvail");
  EXPECT_THAT(StatusOf("c").waiting_for(),
              HasSubstr("0 of 2 can take it; 2 are excluded by the job"));
  spec.set_name("d");
  spec.mutable_placement()->set_nodes(0, "n7");
  Submit(6, spec);
  EXPECT_THAT(StatusOf("d").waiting_for(), HasSubstr("n7 is not in the cluster"));
}

// Fault (queue): An agent is told to end while a batch script runs there -> The script begins again
// on another node once it has ended here
TEST_F(QueueTest, AScriptRunsOnceAtATime) {
  v1::JobSpec batch = Spec("b", 1);
  batch.mutable_batch()->set_script("#!/bin/sh\n");
  Submit(2, batch);
  JoinJob(3, 10, batch, 1, "n0");
  v1::AgentReport closing;
  closing.set_closing(true);
  EXPECT_THAT(Agent(4, 1, closing), ElementsAre("stop 1"));
  v1::NodeMessage leave = MessageFrom({"b", "n0", 10, 1});
  leave.mutable_leave()->set_cause(v1::PREEMPTED);
  EXPECT_THAT(Orders(this->Step(4.1, NodeMessageReceived{StreamId{10}, leave})), IsEmpty());
  EXPECT_EQ(PhaseOf("b"), v1::GATHERING);
  EXPECT_THAT(StatusOf("b").waiting_for(),
              HasSubstr("its script to end on the node that it was taken from"));
  EXPECT_THAT(Submit(5, Spec("other", 1)), ElementsAre("start 2 other on n1"));
  Cancel(5.5, "other");
  Ended(5.6, 2, 2);
  EXPECT_THAT(Ended(6, 1, 1), ElementsAre("start 3 b on n1"));
  v1::AgentReport leaving;
  leaving.set_leaving(true);
  Agent(7, 1, leaving);
  EXPECT_EQ(core_->ClusterNodes().size(), 1u);
}

// Fault (queue): The launcher of a batch script is killed -> The script begins again on another
// node
TEST_F(QueueTest, AScriptWhoseLauncherIsKilledBeginsAgain) {
  v1::JobSpec batch = Spec("b", 1);
  batch.mutable_batch()->set_script("#!/bin/sh\n");
  Submit(2, batch);
  JoinJob(3, 10, batch, 1, "n0");
  Orders(this->Step(4, StreamClosed{StreamId{10}}));
  EXPECT_THAT(Ended(4.01, 1, 1), ElementsAre("start 2 b on n1"));
  Pass(4.05, 5);
  EXPECT_EQ(PhaseOf("b"), v1::GATHERING);
}

}  // namespace
}  // namespace cadre
