// Workers that SIGKILL does not end, beyond what golden/worker_outlives_sigkill.txt tells.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/core/core.h"
#include "rendezvous/testing/test_messages.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
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
  Effects Say(const std::string& node, const v1::NodeMessage& message) {
    return Step(NodeSaid{streams_.at(node), message});
  }
  Speaker Self(const std::string& node, uint64_t generation = 1) {
    return {"job", node, 1, generation};
  }
  Effects Join(const std::string& node, uint64_t generation = 0) {
    streams_[node] = StreamId{++last_stream_};
    return Say(node, JoinFrom(Self(node, generation), spec_, 1));
  }
  void Run(const v1::JobSpec& spec, const std::vector<std::string>& nodes) {
    spec_ = spec;
    for (const std::string& node : nodes) Join(node);
    for (const std::string& node : nodes) Say(node, StartedFrom(Self(node), 0));
    EXPECT_EQ(Status().workers_running(), nodes.size());
  }
  void Elapse(absl::Duration duration) {
    const MonoTime end = now_ + duration;
    while (now_ < end) {
      now_ = std::min(end, std::max(core_->NextDeadline(), now_ + absl::Microseconds(1)));
      for (const auto& [node, stream] : streams_) {
        v1::NodeMessage renew = MessageFrom(Self(node));
        renew.mutable_renew();
        Say(node, renew);
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
  Say("a", ExitedFrom(Self("a"), 0, 1, 0));
  Say("a", StoppedFrom(Self("a")));
  EXPECT_EQ(Status().phase(), v1::STOPPING);
  Say("b", RemainsFrom(Self("b"), 0, 7, "nfs_wait"));
  EXPECT_EQ(Status().phase(), v1::GATHERING);
  EXPECT_THAT(RemainsOn("b"), HasSubstr(kRemains));
  EXPECT_EQ(RemainsOn("a"), "");
  EXPECT_THAT(Explained(), HasSubstr(kRemains));
  EXPECT_EQ(Status().restarts(), 1u);
  Elapse(absl::Minutes(1));
  EXPECT_EQ(Status().phase(), v1::GATHERING);
  Say("b", StoppedFrom(Self("b")));
  EXPECT_EQ(Status().phase(), v1::RUNNING);
  EXPECT_EQ(Status().generation(), 2u);
  EXPECT_EQ(RemainsOn("b"), "");
}

TEST_F(WorkerRemainsTest, UntilItsJoinTimeout_AndTheVerdictNamesIt) {
  Run(SpecOf("job", 2, 2, 3), {"a", "b"});
  Say("a", ExitedFrom(Self("a"), 0, 1, 0));
  Say("a", StoppedFrom(Self("a")));
  Say("b", RemainsFrom(Self("b"), 0, 7, "nfs_wait"));
  Elapse(absl::Minutes(11));
  ASSERT_EQ(Status().phase(), v1::FAILED);
  EXPECT_EQ(Status().verdict().root_cause().cause(), v1::JOIN_TIMEOUT);
  EXPECT_THAT(Status().verdict().message(), HasSubstr(kRemains));
  EXPECT_THAT(Status().timeline().generations(0).late(), HasSubstr(kRemains));
}

TEST_F(WorkerRemainsTest, AnotherNodeTakesItsPlace) {
  Run(SpecOf("job", 2, 2, 3), {"a", "b"});
  Say("a", ExitedFrom(Self("a"), 0, 1, 0));
  Say("a", StoppedFrom(Self("a")));
  Say("b", RemainsFrom(Self("b"), 0, 7, "nfs_wait"));
  Join("c");
  EXPECT_EQ(Status().phase(), v1::RUNNING);
  EXPECT_THAT(Explained(), HasSubstr(kRemains));
  Say("b", StoppedFrom(Self("b")));
  EXPECT_THAT(Explained(), HasSubstr("spare: b"));
}

TEST_F(WorkerRemainsTest, AfterAnotherWorkersFailureItIsNotTheCause) {
  Run(SpecOf("job", 2, 2, 0), {"a", "b"});
  Say("a", ExitedFrom(Self("a"), 0, 1, 0));
  Say("a", StoppedFrom(Self("a")));
  Say("b", RemainsFrom(Self("b"), 0, 7, "nfs_wait"));
  ASSERT_EQ(Status().phase(), v1::FAILED);
  const v1::Verdict verdict = Status().verdict();
  EXPECT_EQ(verdict.root_cause().cause(), v1::CRASH);
  ASSERT_EQ(verdict.collateral_size(), 1);
  EXPECT_THAT(verdict.collateral(0).message(), HasSubstr(kRemains));
}

// What was taken for a hang is a node that is lost: an elastic job goes on for nothing.
TEST_F(WorkerRemainsTest, AWorkerThatHangsBecauseOfItCostsWhatALostNodeDoes) {
  Run(SpecOf("job", 1, 2, 0), {"a", "b"});
  v1::NodeMessage hang = MessageFrom(Self("b"));
  hang.mutable_evidence()->set_hang(true);
  v1::RankEvidence* rank = hang.mutable_evidence()->add_ranks();
  rank->set_local_rank(0);
  rank->set_overdue(true);
  Say("b", hang);
  Elapse(absl::Seconds(1));
  ASSERT_EQ(Status().phase(), v1::STOPPING);
  Say("a", StoppedFrom(Self("a")));
  Say("b", RemainsFrom(Self("b"), 0, 7, "nfs_wait"));
  EXPECT_EQ(Status().phase(), v1::RUNNING);
  EXPECT_EQ(Status().restarts(), 0u);
  EXPECT_THAT(Status().timeline().generations(0).end_reason(), HasSubstr(kRemains));
}

// Two of one node, which tells of one after the other, and again after a reconnection.
TEST_F(WorkerRemainsTest, WhatWasSaidOfAWorkerFirstStays) {
  spec_ = SpecOf("job", 2, 2, 3);
  Join("a");
  streams_["b"] = StreamId{++last_stream_};
  Say("b", JoinFrom(Self("b", 0), spec_, 2));
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
    Say("b", RemainsFrom(Self("b"), 0, 7, "nfs_wait"));
    Say("b", RemainsFrom(Self("b"), 1, 8, "nfs_wait"));
    EXPECT_THAT(RemainsOn("b"), HasSubstr(both));
    EXPECT_THAT(Explained(), HasSubstr(both));
  }
}

TEST_F(WorkerRemainsTest, ANodeThatReconnectsIsStillOut_AlsoForAnotherServer) {
  Run(SpecOf("job", 1, 2, 3), {"a", "b"});
  Say("a", ExitedFrom(Self("a"), 0, 1, 0));
  Say("a", StoppedFrom(Self("a")));
  Say("b", RemainsFrom(Self("b"), 0, 7, "nfs_wait"));
  for (const bool another : {false, true}) {
    if (another) {
      AnotherServer();
      Join("a", 2);
    } else {
      Step(StreamClosed{streams_.at("b")});
    }
    Join("b", 1);
    Say("b", RemainsFrom(Self("b"), 0, 7, "nfs_wait"));
    EXPECT_THAT(RemainsOn("b"), HasSubstr("(local rank 0) on b outlives SIGKILL: pid 7"));
    EXPECT_EQ(Status().generation(), 2u);
    EXPECT_EQ(Status().world_size(), 1u);
  }
  Say("b", StoppedFrom(Self("b")));
  EXPECT_EQ(RemainsOn("b"), "");
  EXPECT_THAT(Explained(), Not(HasSubstr("SIGKILL")));
}

}  // namespace
}  // namespace cadre
