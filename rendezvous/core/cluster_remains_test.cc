// Submitted jobs that lose a node on which something outlives SIGKILL: nothing may run beside it,
// and the job gets another node.
#include <memory>
#include <string>
#include <utility>
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
using ::testing::Not;

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
  static Speaker Launcher(int node) {
    return {"j", Name(node), static_cast<uint64_t>(10 + node), 1};
  }
  std::vector<std::string> Say(double at, int node, const v1::NodeMessage& message) {
    return Orders(Step(at, NodeSaid{StreamId{static_cast<uint64_t>(10 + node)}, message}));
  }
  // The agent says so of a part.
  std::vector<std::string> Remains(double at, uint64_t agent, uint64_t part) {
    v1::NodeMessage message;
    message.mutable_agent()->mutable_remains()->set_id(part);
    message.mutable_agent()->mutable_remains()->set_text("outlives SIGKILL: pid 7");
    return Orders(Step(at, NodeSaid{StreamId{agent}, message}));
  }
  v1::JobStatus Status() const { return *core_->Status(Second(20), "j"); }

  v1::JobSpec spec_;
};

TEST_F(ClusterRemainsTest, AJobGetsAnotherNodeForOneWhoseWorkerRemains) {
  Run(3, 2, 2);
  EXPECT_THAT(Say(4, 1, RemainsFrom(Launcher(1), 0, 7, "nfs_wait")),
              ElementsAre("stop 2", "start 3 j on n2"));
  EXPECT_EQ(core_->ClusterNodes()[1].parts_size(), 1) << "until it is gone its slots are taken";
  JoinJob(5, 12, spec_, 3, "n2");
  Say(6, 0, StoppedFrom(Launcher(0)));
  EXPECT_EQ(Status().phase(), v1::RUNNING);
  EXPECT_EQ(Status().generation(), 2u);
  EXPECT_EQ(Status().world_size(), 8u);
  StartAnew();
  EXPECT_THAT(Join(7, 31, "n0", {1}), IsEmpty());
  EXPECT_THAT(Join(7, 32, "n1", {2}), ElementsAre("stop 2"));
  EXPECT_THAT(Join(7, 33, "n2", {3}), IsEmpty());
  EXPECT_THAT(Ended(8, 32, 2), IsEmpty()) << "the job has what it needs";
  EXPECT_EQ(core_->ClusterNodes()[1].parts_size(), 0);
  EXPECT_EQ(Status().avoided_size(), 0);
}

TEST_F(ClusterRemainsTest, AJobGetsAnotherNodeForOneThatDoesNotStopItsWorkers) {
  Run(3, 2, 2);
  EXPECT_THAT(Say(4, 0, ExitedFrom(Launcher(0), 0, 1, 0)), IsEmpty());
  Say(4, 0, StoppedFrom(Launcher(0)));
  std::vector<std::string> orders;
  // Its connection is well, and so is everybody's.
  for (double at = 4.1; at < 60; at += 0.1) {
    for (const uint64_t stream : {1, 2, 3, 10, 11}) {
      v1::NodeMessage renew;
      if (stream >= 10) renew = MessageFrom(Launcher(static_cast<int>(stream - 10)));
      renew.mutable_renew();
      for (std::string& order : Orders(Step(at, NodeSaid{StreamId{stream}, renew}))) {
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
  EXPECT_THAT(Say(4, 1, RemainsFrom(Launcher(1), 0, 7, "nfs_wait")),
              ElementsAre("stop 2", "start 4 j on n3"));
}

TEST_F(ClusterRemainsTest, WithoutAnotherItWaitsForTheNode) {
  Run(2, 2, 2);
  EXPECT_THAT(Say(4, 1, RemainsFrom(Launcher(1), 0, 7, "nfs_wait")), ElementsAre("stop 2"));
  Say(5, 0, StoppedFrom(Launcher(0)));
  EXPECT_EQ(Status().phase(), v1::GATHERING);
  EXPECT_THAT(Ended(6, 2, 2), ElementsAre("start 3 j on n1"));
}

// It comes back with workers of a generation that went on without it, and then one remains.
TEST_F(ClusterRemainsTest, ANodeThatCameBackIsGivenUpToo) {
  Run(3, 2, 2);
  Orders(Step(4, StreamClosed{StreamId{11}}));
  Pass(4.2, 4.2);
  v1::NodeMessage again = LauncherJoin(11, spec_, 2, "n1");
  again.set_generation(1);
  Orders(Step(5, NodeSaid{StreamId{21}, again}));
  EXPECT_THAT(Orders(Step(6, NodeSaid{StreamId{21}, RemainsFrom(Launcher(1), 0, 7, "nfs_wait")})),
              ElementsAre("stop 2", "start 3 j on n2"));
}

// The launcher was killed, and its agent sees that a worker is left.
TEST_F(ClusterRemainsTest, APartThatIsOverButForWhatRemainsIsTheJobsNoMore) {
  Run(3, 2, 2);
  Orders(Step(4, StreamClosed{StreamId{11}}));
  EXPECT_THAT(Pass(4.2, 4.2), IsEmpty()) << "its launcher may come back";
  EXPECT_THAT(Remains(9, 2, 2), ElementsAre("stop 2", "start 3 j on n2"));
  EXPECT_EQ(Status().avoided_size(), 0);
}

TEST_F(ClusterRemainsTest, WhatHoldsSlotsIsNamedToWhoeverWaitsForThem) {
  Run(2, 2, 2, 3);
  EXPECT_THAT(Say(4, 1, RemainsFrom(Launcher(1), 0, 7, "nfs_wait")), ElementsAre("stop 2"));
  Say(5, 0, StoppedFrom(Launcher(0)));
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
  // Its agent says it again to a server that was started anew.
  StartAnew();
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

// In the step in which it is back jobs are placed, and nobody is to count on its slots.
TEST_F(ClusterRemainsTest, AnAgentThatComesBackStillHasWhatRemains) {
  Run(2, 2, 2);
  EXPECT_THAT(Say(4, 1, RemainsFrom(Launcher(1), 0, 7, "nfs_wait")), ElementsAre("stop 2"));
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
    for (std::string& order : Say(at, 0, renew)) orders.push_back(std::move(order));
    for (const uint64_t agent : {1, 2, 3}) {
      for (std::string& order : Renew(at, agent)) orders.push_back(std::move(order));
    }
  }
  EXPECT_THAT(orders, ElementsAre("stop 2", "start 3 j on n2"));
}

}  // namespace
}  // namespace cadre
