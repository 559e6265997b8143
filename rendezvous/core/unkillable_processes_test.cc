// Tests workers that SIGKILL does not end, beyond what golden/worker_outlives_sigkill.txt covers.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/core/core.h"
#include "rendezvous/testing/cluster_rig.h"
#include "rendezvous/testing/test_messages.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kRemains[] = "rank 1 (local rank 0) on b outlives SIGKILL: pid 7 is in nfs_wait";

// A job of nodes with one worker each.
class WorkerRemainsTest : public testing::Test {
 protected:
  Effects Step(const Event& event) {
    Effects effects = core_->Step(now_, event);
    records_.insert(records_.end(), effects.append.begin(), effects.append.end());
    EXPECT_TRUE(core_->CheckInvariants().ok()) << core_->CheckInvariants();
    return effects;
  }
  Effects Send(const std::string& node, const v1::NodeMessage& message) {
    return Step(NodeMessageReceived{streams_.at(node), message});
  }
  Sender Self(const std::string& node, uint64_t generation = 1) {
    return {"job", node, 1, generation};
  }
  Effects Join(const std::string& node, uint64_t generation = 0) {
    streams_[node] = StreamId{++last_stream_};
    return Send(node, JoinFrom(Self(node, generation), spec_, 1));
  }
  void Run(const v1::JobSpec& spec, const std::vector<std::string>& nodes) {
    spec_ = spec;
    for (const std::string& node : nodes) Join(node);
    for (const std::string& node : nodes) Send(node, StartedFrom(Self(node), 0));
    EXPECT_EQ(Status().workers_running(), nodes.size());
  }
  void Elapse(absl::Duration duration) {
    const MonoTime end = now_ + duration;
    while (now_ < end) {
      now_ = std::min(end, std::max(core_->NextDeadline(), now_ + absl::Microseconds(1)));
      for (const auto& [node, stream] : streams_) {
        v1::NodeMessage renew = MessageFrom(Self(node));
        renew.mutable_renew();
        Send(node, renew);
      }
      Step(Tick{});
    }
  }
  void AnotherServer() {
    auto core = std::make_unique<Core>(CoreConfig());
    for (const v1::Record& record : records_) core->Apply(record);
    core_ = std::move(core);
    streams_.clear();
  }
  v1::JobStatus Status() const { return core_->Status(now_, "job").value(); }
  std::string Explained() const { return core_->Explain(now_, "job").value(); }
  std::string RemainsOn(const std::string& node) const {
    const v1::JobStatus status = Status();
    for (const v1::NodeStatus& one : status.nodes()) {
      if (one.name() == node) return one.remains();
    }
    return "no such node";
  }

  std::unique_ptr<Core> core_ = std::make_unique<Core>(CoreConfig());
  MonoTime now_ = MonoTime::FromMicros(1000000);
  v1::JobSpec spec_;
  std::vector<v1::Record> records_;
  std::map<std::string, StreamId> streams_;
  uint64_t last_stream_ = 0;
};

TEST_F(WorkerRemainsTest, AFixedSizeJobWaitsForItsNode) {
  Run(SpecOf("job", 2, 2, 3), {"a", "b"});
  Send("a", ExitedFrom(Self("a"), 0, 1, 0));
  Send("a", StoppedFrom(Self("a")));
  EXPECT_EQ(Status().phase(), v1::STOPPING);
  Send("b", UnkillableFrom(Self("b"), 0, 7, "nfs_wait"));
  EXPECT_EQ(Status().phase(), v1::GATHERING);
  EXPECT_THAT(RemainsOn("b"), HasSubstr(kRemains));
  EXPECT_EQ(RemainsOn("a"), "");
  EXPECT_THAT(Explained(), HasSubstr(kRemains));
  EXPECT_EQ(Status().restarts(), 1u);
  Elapse(absl::Minutes(1));
  EXPECT_EQ(Status().phase(), v1::GATHERING);
  Send("b", StoppedFrom(Self("b")));
  EXPECT_EQ(Status().phase(), v1::RUNNING);
  EXPECT_EQ(Status().generation(), 2u);
  EXPECT_EQ(RemainsOn("b"), "");
}

TEST_F(WorkerRemainsTest, UntilItsJoinTimeout_AndTheVerdictNamesIt) {
  Run(SpecOf("job", 2, 2, 3), {"a", "b"});
  Send("a", ExitedFrom(Self("a"), 0, 1, 0));
  Send("a", StoppedFrom(Self("a")));
  Send("b", UnkillableFrom(Self("b"), 0, 7, "nfs_wait"));
  Elapse(absl::Minutes(11));
  ASSERT_EQ(Status().phase(), v1::FAILED);
  EXPECT_EQ(Status().verdict().root_cause().cause(), v1::JOIN_TIMEOUT);
  EXPECT_THAT(Status().verdict().message(), HasSubstr(kRemains));
  EXPECT_THAT(Status().timeline().generations(0).late(), HasSubstr(kRemains));
}

TEST_F(WorkerRemainsTest, AnotherNodeTakesItsPlace) {
  Run(SpecOf("job", 2, 2, 3), {"a", "b"});
  Send("a", ExitedFrom(Self("a"), 0, 1, 0));
  Send("a", StoppedFrom(Self("a")));
  Send("b", UnkillableFrom(Self("b"), 0, 7, "nfs_wait"));
  Join("c");
  EXPECT_EQ(Status().phase(), v1::RUNNING);
  EXPECT_THAT(Explained(), HasSubstr(kRemains));
  Send("b", StoppedFrom(Self("b")));
  EXPECT_THAT(Explained(), HasSubstr("spare: b"));
}

TEST_F(WorkerRemainsTest, AfterAnotherWorkersFailureItIsNotTheCause) {
  Run(SpecOf("job", 2, 2, 0), {"a", "b"});
  Send("a", ExitedFrom(Self("a"), 0, 1, 0));
  Send("a", StoppedFrom(Self("a")));
  Send("b", UnkillableFrom(Self("b"), 0, 7, "nfs_wait"));
  ASSERT_EQ(Status().phase(), v1::FAILED);
  const v1::Verdict verdict = Status().verdict();
  EXPECT_EQ(verdict.root_cause().cause(), v1::CRASH);
  ASSERT_EQ(verdict.collateral_size(), 1);
  EXPECT_THAT(verdict.collateral(0).message(), HasSubstr(kRemains));
}

// The hang turns out to be a lost node: an elastic job goes on without using its budget.
TEST_F(WorkerRemainsTest, AWorkerThatHangsBecauseOfItCostsWhatALostNodeDoes) {
  Run(SpecOf("job", 1, 2, 0), {"a", "b"});
  v1::NodeMessage hang = MessageFrom(Self("b"));
  hang.mutable_evidence()->set_hang(true);
  v1::RankEvidence* rank = hang.mutable_evidence()->add_ranks();
  rank->set_local_rank(0);
  rank->set_overdue(true);
  Send("b", hang);
  Elapse(absl::Seconds(1));
  ASSERT_EQ(Status().phase(), v1::STOPPING);
  Send("a", StoppedFrom(Self("a")));
  Send("b", UnkillableFrom(Self("b"), 0, 7, "nfs_wait"));
  EXPECT_EQ(Status().phase(), v1::RUNNING);
  EXPECT_EQ(Status().restarts(), 0u);
  EXPECT_THAT(Status().timeline().generations(0).end_reason(), HasSubstr(kRemains));
}

// Two workers of one node remain; the node reports one after the other, and both again after a
// reconnection.
TEST_F(WorkerRemainsTest, WhatWasSaidOfAWorkerFirstStays) {
  spec_ = SpecOf("job", 2, 2, 3);
  Join("a");
  streams_["b"] = StreamId{++last_stream_};
  Send("b", JoinFrom(Self("b", 0), spec_, 2));
  ASSERT_EQ(Status().generation(), 1u);
  const std::string both =
      std::string(kRemains) +
      " (state D); only the file system or device that it waits for, or a "
      "restart of the machine, ends it, rank 2 (local rank 1) on b outlives SIGKILL: pid 8 is in ";
  for (const bool again : {false, true}) {
    if (again) {
      Step(StreamClosed{streams_.at("b")});
      Join("b", 1);
    }
    Send("b", UnkillableFrom(Self("b"), 0, 7, "nfs_wait"));
    Send("b", UnkillableFrom(Self("b"), 1, 8, "nfs_wait"));
    EXPECT_THAT(RemainsOn("b"), HasSubstr(both));
    EXPECT_THAT(Explained(), HasSubstr(both));
  }
}

TEST_F(WorkerRemainsTest, ANodeThatReconnectsIsStillOut_AlsoForAnotherServer) {
  Run(SpecOf("job", 1, 2, 3), {"a", "b"});
  Send("a", ExitedFrom(Self("a"), 0, 1, 0));
  Send("a", StoppedFrom(Self("a")));
  Send("b", UnkillableFrom(Self("b"), 0, 7, "nfs_wait"));
  for (const bool another : {false, true}) {
    if (another) {
      AnotherServer();
      Join("a", 2);
    } else {
      Step(StreamClosed{streams_.at("b")});
    }
    Join("b", 1);
    Send("b", UnkillableFrom(Self("b"), 0, 7, "nfs_wait"));
    EXPECT_THAT(RemainsOn("b"), HasSubstr("(local rank 0) on b outlives SIGKILL: pid 7"));
    EXPECT_EQ(Status().generation(), 2u);
    EXPECT_EQ(Status().world_size(), 1u);
  }
  Send("b", StoppedFrom(Self("b")));
  EXPECT_EQ(RemainsOn("b"), "");
  EXPECT_THAT(Explained(), Not(HasSubstr("SIGKILL")));
}

// Submitted jobs that lose a node on which a process outlives SIGKILL: nothing may run beside it
// there, and the job gets another node.

class ClusterRemainsTest : public ClusterRig {
 protected:
  // Node i of `nodes` has agent i + 1; job j runs on the first `max`, with part i + 1 and launcher
  // 10 + i on node i.
  void Run(int nodes, uint32_t min, uint32_t max, int join_timeout_s = 600) {
    for (int i = 0; i < nodes; ++i) Join(1, i + 1, Name(i));
    spec_ = Spec("j", min, max);
    spec_.mutable_restart()->set_max(1);
    spec_.mutable_rendezvous()->mutable_join_timeout()->set_seconds(join_timeout_s);
    spec_.mutable_elastic()->set_scale_up(v1::ElasticPolicy::IMMEDIATELY);
    Submit(2, spec_);
    for (uint32_t i = 0; i < max; ++i) JoinJob(3, 10 + i, spec_, i + 1, Name(i));
    ASSERT_EQ(PhaseOf("j"), v1::RUNNING);
  }
  static std::string Name(int node) { return absl::StrCat("n", node); }
  static Sender Launcher(int node) {
    return {"j", Name(node), static_cast<uint64_t>(10 + node), 1};
  }
  std::vector<std::string> Send(double at, int node, const v1::NodeMessage& message) {
    return Orders(
        Step(at, NodeMessageReceived{StreamId{static_cast<uint64_t>(10 + node)}, message}));
  }
  // The agent reports that a process of the part remains.
  std::vector<std::string> Remains(double at, uint64_t agent, uint64_t part) {
    v1::NodeMessage message;
    message.mutable_agent()->mutable_remains()->set_id(part);
    message.mutable_agent()->mutable_remains()->set_text("outlives SIGKILL: pid 7");
    return Orders(Step(at, NodeMessageReceived{StreamId{agent}, message}));
  }
  v1::JobStatus Status() const { return *core_->Status(Second(20), "j"); }

  v1::JobSpec spec_;
};

// Fault (queue): SIGKILL does not end a worker of a submitted job, or a process that a launcher
// left -> The job's allocation on that node ends and the job gets another node; the slots stay
// taken until the process is gone
TEST_F(ClusterRemainsTest, AJobGetsAnotherNodeForOneWhoseWorkerRemains) {
  Run(3, 2, 2);
  EXPECT_THAT(Send(4, 1, UnkillableFrom(Launcher(1), 0, 7, "nfs_wait")),
              ElementsAre("stop 2", "start 3 j on n2"));
  EXPECT_EQ(core_->ClusterNodes()[1].parts_size(), 1) << "until it is gone its slots are taken";
  JoinJob(5, 12, spec_, 3, "n2");
  Send(6, 0, StoppedFrom(Launcher(0)));
  EXPECT_EQ(Status().phase(), v1::RUNNING);
  EXPECT_EQ(Status().generation(), 2u);
  EXPECT_EQ(Status().world_size(), 8u);
  RestartServer();
  EXPECT_THAT(Join(7, 31, "n0", {1}), IsEmpty());
  EXPECT_THAT(Join(7, 32, "n1", {2}), ElementsAre("stop 2"));
  EXPECT_THAT(Join(7, 33, "n2", {3}), IsEmpty());
  EXPECT_THAT(Ended(8, 32, 2), IsEmpty()) << "the job has what it needs";
  EXPECT_EQ(core_->ClusterNodes()[1].parts_size(), 0);
  EXPECT_EQ(Status().avoided_size(), 0);
}

// Fault (queue): A node of a submitted job does not stop its workers in time -> Its launcher is
// ended, and the job gets another node
TEST_F(ClusterRemainsTest, AJobGetsAnotherNodeForOneThatDoesNotStopItsWorkers) {
  Run(3, 2, 2);
  EXPECT_THAT(Send(4, 0, ExitedFrom(Launcher(0), 0, 1, 0)), IsEmpty());
  Send(4, 0, StoppedFrom(Launcher(0)));
  std::vector<std::string> orders;
  // Its connection works, as do all others.
  for (double at = 4.1; at < 60; at += 0.1) {
    for (const uint64_t stream : {1, 2, 3, 10, 11}) {
      v1::NodeMessage renew;
      if (stream >= 10) renew = MessageFrom(Launcher(static_cast<int>(stream - 10)));
      renew.mutable_renew();
      for (std::string& order : Orders(Step(at, NodeMessageReceived{StreamId{stream}, renew}))) {
        orders.push_back(std::move(order));
      }
    }
  }
  EXPECT_THAT(orders, ElementsAre("stop 2", "start 3 j on n2"));
  JoinJob(60, 12, spec_, 3, "n2");
  EXPECT_EQ(Status().phase(), v1::RUNNING);
}

TEST_F(ClusterRemainsTest, SoDoesAnElasticOneThatGoesOnWithoutIt) {
  Run(4, 2, 3);
  EXPECT_THAT(Send(4, 1, UnkillableFrom(Launcher(1), 0, 7, "nfs_wait")),
              ElementsAre("stop 2", "start 4 j on n3"));
}

TEST_F(ClusterRemainsTest, WithoutAnotherItWaitsForTheNode) {
  Run(2, 2, 2);
  EXPECT_THAT(Send(4, 1, UnkillableFrom(Launcher(1), 0, 7, "nfs_wait")), ElementsAre("stop 2"));
  Send(5, 0, StoppedFrom(Launcher(0)));
  EXPECT_EQ(Status().phase(), v1::GATHERING);
  EXPECT_THAT(Ended(6, 2, 2), ElementsAre("start 3 j on n1"));
}

// The node reconnects with workers of a generation that went on without it, and then one of them
// cannot be killed.
TEST_F(ClusterRemainsTest, ANodeThatCameBackIsGivenUpToo) {
  Run(3, 2, 2);
  Orders(Step(4, StreamClosed{StreamId{11}}));
  Pass(4.2, 4.2);
  v1::NodeMessage again = LauncherJoin(11, spec_, 2, "n1");
  again.set_generation(1);
  Orders(Step(5, NodeMessageReceived{StreamId{21}, again}));
  EXPECT_THAT(Orders(Step(6, NodeMessageReceived{StreamId{21},
                                                 UnkillableFrom(Launcher(1), 0, 7, "nfs_wait")})),
              ElementsAre("stop 2", "start 3 j on n2"));
}

// The launcher was killed, and the agent finds that a worker of it is left.
TEST_F(ClusterRemainsTest, APartThatIsOverButForWhatRemainsIsTheJobsNoMore) {
  Run(3, 2, 2);
  Orders(Step(4, StreamClosed{StreamId{11}}));
  EXPECT_THAT(Pass(4.2, 4.2), IsEmpty()) << "its launcher may come back";
  EXPECT_THAT(Remains(9, 2, 2), ElementsAre("stop 2", "start 3 j on n2"));
  EXPECT_EQ(Status().avoided_size(), 0);
}

// Fault (queue): A process that SIGKILL does not end holds the slots that a job waits for -> `cadre
// nodes`, `cadre why` of the waiting job and the agent's log name it
TEST_F(ClusterRemainsTest, WhatHoldsSlotsIsNamedToWhoeverWaitsForThem) {
  Run(2, 2, 2, 3);
  EXPECT_THAT(Send(4, 1, UnkillableFrom(Launcher(1), 0, 7, "nfs_wait")), ElementsAre("stop 2"));
  Send(5, 0, StoppedFrom(Launcher(0)));
  Orders(Step(5, StreamClosed{StreamId{11}}));
  EXPECT_THAT(Remains(6, 2, 2), IsEmpty());
  const char kText[] = "on n1 a process of job j outlives SIGKILL: pid 7";
  EXPECT_THAT(Status().waiting_for(), HasSubstr(kText));
  EXPECT_THAT(core_->ClusterNodes()[1].remains(),
              ElementsAre("a process of job j outlives SIGKILL: pid 7"));
  Pass(7, 9);
  EXPECT_EQ(Status().phase(), v1::GATHERING) << "as in the queue, though its join timeout is over";
  EXPECT_THAT(Status().waiting_for(), HasSubstr(kText));
  Orders(Step(9, JobCancelled{"j", "", 0}));
  EXPECT_THAT(Submit(9, Spec("next", 2)), IsEmpty());
  EXPECT_THAT(core_->Status(Second(9), "next")->waiting_for(),
              HasSubstr(absl::StrCat("1 of 2 can take it; ", kText)));
  // Its agent reports it again to a restarted server.
  RestartServer();
  Join(10, 31, "n0");
  EXPECT_THAT(Join(10, 32, "n1", {2}), ElementsAre("stop 2"));
  EXPECT_THAT(core_->Status(Second(10), "next")->waiting_for(), Not(HasSubstr("SIGKILL")));
  Remains(10, 32, 2);
  EXPECT_THAT(core_->Status(Second(10), "next")->waiting_for(), HasSubstr(kText));
  EXPECT_THAT(Ended(11, 32, 2), ElementsAre("start 3 next on n0", "start 4 next on n1"));
  EXPECT_TRUE(core_->ClusterNodes()[1].remains().empty());
  Remains(12, 32, 2);
  EXPECT_TRUE(core_->ClusterNodes()[1].remains().empty()) << "it is long gone";
}

// Jobs are placed in the same step in which the agent reconnects, and none may count on those
// slots.
TEST_F(ClusterRemainsTest, AnAgentThatComesBackStillHasWhatRemains) {
  Run(2, 2, 2);
  EXPECT_THAT(Send(4, 1, UnkillableFrom(Launcher(1), 0, 7, "nfs_wait")), ElementsAre("stop 2"));
  Orders(Step(5, StreamClosed{StreamId{11}}));
  EXPECT_THAT(Remains(6, 2, 2), IsEmpty());
  Orders(Step(7, StreamClosed{StreamId{2}}));
  EXPECT_THAT(Join(8, 22, "n1", {2}), ElementsAre("stop 2"));
  EXPECT_THAT(core_->ClusterNodes()[1].remains(),
              ElementsAre("a process of job j outlives SIGKILL: pid 7"));
  Orders(Step(9, StreamClosed{StreamId{22}}));
  EXPECT_THAT(Join(10, 23, "n1"), ElementsAre("start 3 j on n1")) << "it is gone";
  EXPECT_TRUE(core_->ClusterNodes()[1].remains().empty());
}

TEST_F(ClusterRemainsTest, AJobThatGivesUpALauncherGetsAnotherNodeAtOnce) {
  Run(3, 2, 2);
  std::vector<std::string> orders;
  for (double at = 3.1; at < 14; at += 0.1) {
    v1::NodeMessage renew = MessageFrom(Launcher(0));
    renew.mutable_renew();
    for (std::string& order : Send(at, 0, renew)) orders.push_back(std::move(order));
    for (const uint64_t agent : {1, 2, 3}) {
      for (std::string& order : Renew(at, agent)) orders.push_back(std::move(order));
    }
  }
  EXPECT_THAT(orders, ElementsAre("stop 2", "start 3 j on n2"));
}

}  // namespace

}  // namespace cadre
