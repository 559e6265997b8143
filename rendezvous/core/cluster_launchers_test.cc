// Launchers of submitted jobs that do not begin, end unasked or are not let in.
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
  // The agent says of a part that it could not begin for what may pass: what is ordered next, and
  // after how many seconds.
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

// Whether its launcher or its agent is missed first.
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

// Others have what it cannot use until it gets all of its nodes again.
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
  Orders(Step(4.2, NodeSaid{StreamId{10}, StoppedFrom({"j", "n0", 10, 1})}));
  EXPECT_EQ(PhaseOf("j"), v1::GATHERING);
  Submit(5, Spec("k", 1));
  std::vector<std::string> orders;
  for (int second = 5; second < 30; ++second) {
    Renew(second, 1);
    v1::NodeMessage renew = StoppedFrom({"j", "n0", 10, 1});
    renew.mutable_renew();
    Orders(Step(second, NodeSaid{StreamId{10}, renew}));
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

// An agent of 0.2 makes its launchers tokens that fit every state of the server; once it is
// upgraded they open nothing any more.
TEST_F(ClusterLaunchersTest, ATokenOfTheVersionBeforeIsGoodWhereTheAgentIsOfThat) {
  for (const bool upgraded : {false, true}) {
    core_ = std::make_unique<Core>(CoreConfig());
    v1::NodeMessage agent;
    agent.set_incarnation(1);
    v1::AgentJoined* joined = agent.mutable_agent()->mutable_joined();
    joined->set_node("n0");
    joined->set_cpus(4);
    if (upgraded) *joined->mutable_version() = rpc::ThisVersion();
    Orders(Step(1, NodeSaid{StreamId{1}, agent}));
    EXPECT_EQ(core_->ClusterNodes()[0].version(), upgraded ? "" : "0.2");
    EXPECT_THAT(Submit(2, Spec("j", 1)), ElementsAre("start 1 j on n0"));
    v1::NodeMessage launcher = LauncherJoin(7, Spec("j", 1), 1, "n0");
    launcher.mutable_join()->mutable_caller()->set_part_token_before(true);
    const Effects effects = Step(3, NodeSaid{StreamId{7}, launcher});
    ASSERT_FALSE(effects.send.empty());
    EXPECT_EQ(effects.send[0].message.has_welcome(), !upgraded);
    EXPECT_EQ(effects.send[0].message.has_rejected(), upgraded);
  }
}

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

TEST_F(ClusterLaunchersTest, ANodeOnWhichAJobCannotBeginIsAvoidedAndAnotherOneTried) {
  Join(1, 1, "n0");
  Join(1, 2, "n1");
  EXPECT_THAT(Submit(2, Spec("j", 1)), ElementsAre("start 1 j on n0"));
  EXPECT_THAT(Ended(3, 1, 1), ElementsAre("start 2 j on n1"));
  const v1::JobStatus status = *core_->Status(Second(3), "j");
  ASSERT_EQ(status.avoided_size(), 1);
  EXPECT_EQ(status.avoided(0).node(), "n0");
  EXPECT_EQ(status.avoided(0).reason(), "no user alice");
  StartAnew();
  JoinJob(4, 10, Spec("j", 1), 2, "n1");
  EXPECT_EQ(PhaseOf("j"), v1::RUNNING);
  EXPECT_EQ(core_->Status(Second(4), "j")->avoided_size(), 1);
  Core again(CoreConfig{});
  for (const v1::Record& record : core_->Snapshot()) again.Apply(record);
  EXPECT_EQ(again.DebugString(), core_->DebugString());
}

TEST_F(ClusterLaunchersTest, AJobThatNoNodeIsLeftForFailsAndSaysWhatWasTried) {
  Join(1, 1, "n0");
  Join(1, 2, "n1");
  Submit(2, Spec("j", 2));
  // The node that is well is given back.
  EXPECT_THAT(Ended(3, 2, 2), ElementsAre("stop 1"));
  const v1::JobStatus status = *core_->Status(Second(3), "j");
  EXPECT_EQ(status.phase(), v1::FAILED);
  EXPECT_EQ(status.verdict().exit_status(), 75);
  EXPECT_EQ(
      status.verdict().message(),
      "no node is left for it; tried: n1 (no user alice); it needs 1 more node with 4 CPUs: the "
      "only other one cannot take it; n1 is avoided, since it could not begin there");
}

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

TEST_F(ClusterLaunchersTest, WhatAJobLackedOnANodeMayPass) {
  Join(1, 1, "n0");
  Submit(2, Spec("j", 1));
  EXPECT_THAT(Ended(3, 1, 1, v1::BLAME_NOBODY), IsEmpty());
  EXPECT_EQ(PhaseOf("j"), v1::QUEUED);
  EXPECT_THAT(*core_->Explain(Second(3), "j"), HasSubstr("n0 is tried again in a moment"));
  // Others are not kept from it.
  EXPECT_THAT(Submit(3.1, Spec("k", 1)), ElementsAre("start 2 k on n0"));
  Orders(Step(3.2, JobCancelled{"k", "", 0}));
  EXPECT_THAT(Ended(3.3, 1, 2), IsEmpty());
  EXPECT_THAT(Pass(3.35, 4.1), ElementsAre("start 3 j on n0"));
  JoinJob(5, 10, Spec("j", 1), 3, "n0");
  EXPECT_EQ(PhaseOf("j"), v1::RUNNING);
}

// One that has begun is tried for as long as it waits for nodes, and not in a loop.
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
  Orders(Step(6, NodeSaid{StreamId{10}, leave}));
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
  Orders(Step(4, NodeSaid{StreamId{10}, leave}));
  EXPECT_EQ(PhaseOf("j"), v1::GATHERING);
  EXPECT_EQ(core_->Status(Second(4), "j")->restarts(), 0u);
  v1::NodeMessage leaving;
  leaving.mutable_agent()->set_leaving(true);
  EXPECT_THAT(Orders(Step(5, NodeSaid{StreamId{1}, leaving})), ElementsAre("start 2 j on n1"));
  // Nor does one that dies, of which nobody says that it was the launcher alone.
  JoinJob(6, 11, Spec("j", 1), 2, "n1");
  ASSERT_EQ(PhaseOf("j"), v1::RUNNING);
  Orders(Step(7, StreamClosed{StreamId{11}}));
  for (double at = 7.05; at < 7.6; at += 0.05) Orders(Step(at, Tick{}));
  EXPECT_EQ(PhaseOf("j"), v1::GATHERING);
  EXPECT_EQ(core_->Status(Second(8), "j")->restarts(), 0u);
}

TEST_F(ClusterLaunchersTest, ALauncherThatIsGivenUpIsEndedAndTheJobGetsANodeAgain) {
  ASSERT_NO_FATAL_FAILURE(RunOnTheOnlyNode());
  std::vector<std::string> orders;
  for (double at = 3.1; at < 14; at += 0.1) {
    for (std::string& order : Renew(at, 1)) orders.push_back(std::move(order));
  }
  EXPECT_THAT(orders, ElementsAre("stop 1"));
  EXPECT_EQ(PhaseOf("j"), v1::GATHERING);
  // Until it has ended the node is not free.
  EXPECT_EQ(core_->ClusterNodes()[0].parts_size(), 1);
  EXPECT_THAT(Ended(15, 1, 1), ElementsAre("start 2 j on n0"));
}

TEST_F(ClusterLaunchersTest, OnlyTheLaunchersOfItsPartsTakePartInAJob) {
  Join(1, 1, "n0");
  Submit(2, Spec("j", 1));
  const auto join = [&](uint64_t stream, uint64_t part, const std::string& node) {
    const Effects effects =
        Step(3, NodeSaid{StreamId{stream}, LauncherJoin(stream, Spec("j", 1), part, node)});
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

// A spec has secrets in its env, and a verdict what the program wrote.
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
  Orders(Step(5, NodeSaid{StreamId{10}, stopped}));
  Orders(Step(5, StreamClosed{StreamId{10}}));
  ASSERT_EQ(PhaseOf("j"), v1::CANCELLED_PHASE);
  uint64_t stream = 20;
  const auto join = [&](uint64_t incarnation, uint64_t part, uint64_t generation) {
    v1::NodeMessage message = LauncherJoin(incarnation, Spec("j", 1), part, "n0");
    message.set_generation(generation);
    const Effects effects = Step(6, NodeSaid{StreamId{++stream}, message});
    Orders(effects);
    std::string said;
    for (const SendToStream& send : effects.send) said += send.message.ShortDebugString();
    Orders(Step(6, StreamClosed{StreamId{stream}}));
    return said;
  };
  const std::string refused = join(11, 0, 1);
  EXPECT_THAT(refused, HasSubstr("was submitted to the cluster by alice"));
  EXPECT_THAT(refused, Not(HasSubstr("hidden")));
  // As nobody can who does not know the number of that life, and who has no part.
  EXPECT_THAT(join(10, 0, 1), Not(HasSubstr("hidden")));
  // A part of another run of that name.
  EXPECT_THAT(join(11, 9, 1), Not(HasSubstr("hidden")));
  EXPECT_THAT(join(10, 1, 1), HasSubstr("finished"));
  EXPECT_THAT(Ended(7, 1, 1), IsEmpty());
  EXPECT_THAT(join(10, 1, 1), HasSubstr("finished")) << "the node has given its part back";
}

}  // namespace
}  // namespace cadre
