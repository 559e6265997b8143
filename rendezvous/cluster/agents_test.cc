#include "rendezvous/cluster/agents.h"

#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "rendezvous/cluster/allocations.h"
#include "rendezvous/cluster/launcher_check.h"
#include "rpc/node_memory.h"
#include "rpc/versions.h"

namespace cadre::cluster {
namespace {

MonoTime At(int seconds) { return MonoTime() + absl::Seconds(seconds); }

class AgentsTest : public testing::Test {
 protected:
  // Returns which node is lost at that time, on a host that is never late.
  std::optional<std::string> LostAt(int seconds) {
    for (; at_ <= At(seconds); at_ = at_ + absl::Milliseconds(100)) clock_.Advance(at_, at_, true);
    return agents_.NextExpired(clock_);
  }
  void SetCanSave(int seconds, bool can) {
    EXPECT_EQ(LostAt(seconds), std::nullopt);
    clock_.SetCanSave(can);
  }

  Agents agents_{absl::Seconds(10)};

 private:
  step::LeaseClock clock_{absl::Seconds(10), absl::Milliseconds(100)};
  MonoTime at_;
};

TEST_F(AgentsTest, OneThatIsHeardIsLostALeaseAfterIt) {
  agents_.Connect("a", StreamId{1}, 1, {}, At(0));
  agents_.RenewLease("a", At(8));
  EXPECT_EQ(LostAt(10), std::nullopt);
  EXPECT_EQ(agents_.NextDeadline(), At(18));
  EXPECT_EQ(LostAt(18), "a");
  agents_.Erase("a");
  EXPECT_EQ(LostAt(18), std::nullopt);
  EXPECT_EQ(agents_.NodeOf(StreamId{1}), nullptr);
}

TEST_F(AgentsTest, OneThatIsGoneHasALeaseToComeBack) {
  agents_.Connect("a", StreamId{1}, 1, {}, At(0));
  agents_.Disconnect(StreamId{1}, At(5));
  EXPECT_EQ(LostAt(14), std::nullopt);
  agents_.Connect("a", StreamId{2}, 1, {}, At(14));
  EXPECT_TRUE(agents_.IsConnected("a"));
  EXPECT_EQ(LostAt(15), std::nullopt);
}

TEST_F(AgentsTest, ANewStreamTakesTheOlderOnesPlace) {
  agents_.Connect("a", StreamId{1}, 1, {}, At(0));
  agents_.Connect("a", StreamId{2}, 1, {}, At(1));
  EXPECT_EQ(agents_.NodeOf(StreamId{1}), nullptr);
  ASSERT_NE(agents_.NodeOf(StreamId{2}), nullptr);
  // A later report that the older stream ended concerns no agent.
  agents_.Disconnect(StreamId{1}, At(2));
  EXPECT_TRUE(agents_.IsConnected("a"));
}

TEST_F(AgentsTest, AfterTheServerBeganAnewAgentsAreExpectedForALease) {
  agents_.Expect("a", At(0));
  agents_.Expect("b", At(0));
  agents_.Connect("a", StreamId{1}, 1, {}, At(3));
  EXPECT_TRUE(agents_.AnyExpected());
  EXPECT_EQ(LostAt(10), "b");
  agents_.Erase("b");
  EXPECT_FALSE(agents_.AnyExpected());
  // An agent that was connected is no longer expected, but has its lease to reconnect.
  agents_.Disconnect(StreamId{1}, At(11));
  EXPECT_FALSE(agents_.AnyExpected());
  agents_.AwaitAbsent(At(15));
  EXPECT_EQ(LostAt(24), std::nullopt);
  EXPECT_EQ(LostAt(25), "a");
}

// It could not reconnect, since no agent is admitted then.
TEST_F(AgentsTest, OneThatIsGoneIsNotLostBeforeTheServerCanSave) {
  agents_.Connect("a", StreamId{1}, 1, {}, At(0));
  agents_.Connect("b", StreamId{2}, 1, {}, At(0));
  agents_.Disconnect(StreamId{1}, At(1));
  SetCanSave(5, false);
  agents_.RenewLease("b", At(15));
  EXPECT_EQ(LostAt(20), std::nullopt);
  EXPECT_EQ(LostAt(25), "b") << "it is connected, and silent";
  agents_.Erase("b");
  SetCanSave(60, true);
  agents_.AwaitAbsent(At(60));
  EXPECT_EQ(LostAt(69), std::nullopt);
  EXPECT_EQ(LostAt(70), "a");
}

TEST_F(AgentsTest, WhatRemainsIsKnownUntilItIsGone) {
  agents_.Connect("a", StreamId{1}, 1, {}, At(0));
  agents_.AddUnkillable("a", 7, "stays");
  EXPECT_TRUE(agents_.HasUnkillable("a", 7));
  EXPECT_FALSE(agents_.HasUnkillable("a", 8));
  agents_.OnAllocationEnded("a", 7);
  EXPECT_TRUE(agents_.unkillable().empty());
  agents_.AddUnkillable("a", 8, "stays");
  agents_.Erase("a");
  EXPECT_TRUE(agents_.unkillable().empty());
}

TEST_F(AgentsTest, OneThatComesBackStillHasWhatRemainsOfThePartsThatItRuns) {
  agents_.Connect("a", StreamId{1}, 1, {}, At(0));
  agents_.AddUnkillable("a", 7, "stays");
  agents_.AddUnkillable("a", 8, "stays");
  agents_.Disconnect(StreamId{1}, At(1));
  EXPECT_TRUE(agents_.HasUnkillable("a", 7));
  agents_.Connect("a", StreamId{2}, 1, {8, 9}, At(2));
  EXPECT_FALSE(agents_.HasUnkillable("a", 7)) << "it is gone";
  EXPECT_TRUE(agents_.HasUnkillable("a", 8));
  EXPECT_FALSE(agents_.HasUnkillable("a", 9));
  agents_.Connect("a", StreamId{3}, 1, {}, At(3));
  EXPECT_TRUE(agents_.unkillable().empty());
}

v1::AgentJoined Joined() {
  v1::AgentJoined agent;
  agent.set_node("n0");
  agent.set_cpus(8);
  agent.set_gpus(2);
  *agent.mutable_version() = rpc::ThisVersion();
  (*agent.mutable_labels())["rack"] = "r1";
  return agent;
}

saved::ClusterNode Known() {
  saved::ClusterNode node;
  node.set_name("n0");
  node.set_cpus(8);
  node.set_gpus(2);
  (*node.mutable_labels())["rack"] = "r1";
  return node;
}

TEST(CheckAgentTest, RoomAndLabelsHaveLimits) {
  EXPECT_TRUE(CheckAgent(Joined()).ok());
  v1::AgentJoined none = Joined();
  none.set_cpus(0);
  EXPECT_EQ(CheckAgent(none).message(),
            "node n0 has 0 CPUs, 2 GPUs and 1 label; 1 to 65536, at most 4096 and at most 64 are "
            "allowed");
  v1::AgentJoined large = Joined();
  large.set_memory(rpc::kMaxNodeMemory);
  EXPECT_TRUE(CheckAgent(large).ok());
  large.set_memory(rpc::kMaxNodeMemory + 1);
  EXPECT_EQ(CheckAgent(large).message(),
            "node n0 has 67108864 MiB of memory; at most 65536 GiB are allowed; give --memory");
  v1::AgentJoined many = Joined();
  for (int i = 0; i < 64; ++i) (*many.mutable_labels())[std::to_string(i)] = "v";
  EXPECT_EQ(CheckAgent(many).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CheckAgentTest, TextsHaveNoControlCharacters) {
  v1::AgentJoined agent = Joined();
  agent.set_user("a\nb");
  EXPECT_EQ(CheckAgent(agent).code(), absl::StatusCode::kInvalidArgument);
  agent = Joined();
  (*agent.mutable_labels())["rack"] = std::string(256, 'r');
  EXPECT_EQ(CheckAgent(agent).code(), absl::StatusCode::kInvalidArgument);
  agent = Joined();
  agent.set_node("");
  EXPECT_EQ(CheckAgent(agent).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CheckAgentTest, OfAVersionTooFarAwayItIsRefused) {
  v1::AgentJoined agent = Joined();
  agent.mutable_version()->set_minor(rpc::kMinorVersion + 1);
  EXPECT_TRUE(CheckAgent(agent).ok());
  agent.mutable_version()->set_minor(rpc::kMinorVersion + 2);
  EXPECT_EQ(CheckAgent(agent).code(), absl::StatusCode::kUnavailable);
}

TEST(CheckNewNodeTest, ANameThatDiffersInCaseAloneIsTaken) {
  state::Cluster cluster;
  cluster.nodes["n0"] = Known();
  EXPECT_TRUE(CheckNewNode("n0", cluster).ok());
  EXPECT_TRUE(CheckNewNode("n1", cluster).ok());
  EXPECT_EQ(CheckNewNode("N0", cluster).code(), absl::StatusCode::kAlreadyExists);
}

TEST(SameNodeTest, WhatPeopleSaidOfItDoesNotCount) {
  saved::ClusterNode known = Known();
  known.set_drained(true);
  EXPECT_TRUE(SameNode(known, Joined()));
  v1::AgentJoined agent = Joined();
  (*agent.mutable_labels())["rack"] = "r2";
  EXPECT_FALSE(SameNode(known, agent));
  agent = Joined();
  agent.set_gpus(1);
  EXPECT_FALSE(SameNode(known, agent));
  agent = Joined();
  agent.set_memory(1 << 30);
  EXPECT_FALSE(SameNode(known, agent)) << "its agent was upgraded to a version that says it";
}

constexpr uint64_t kAllocation = 5;

// Job "train" of alice with one allocation, on n0.
class PartsTest : public testing::Test {
 protected:
  PartsTest() {
    state::Job& train = state_.jobs["train"];
    train.saved.mutable_spec()->set_name("train");
    train.saved.mutable_submission()->set_user("alice");
    train.saved.set_phase(v1::GATHERING);
    Place(kAllocation, "n0");
  }
  state::Job& job() { return state_.jobs.at("train"); }
  saved::PlacedPart& allocation() { return state_.cluster.allocations.at(kAllocation); }
  void Place(uint64_t id, const std::string& node) {
    v1::Part* placed = state_.cluster.allocations[id].mutable_part();
    placed->set_id(id);
    placed->set_job("train");
    placed->set_node(node);
  }
  void LetIn(const std::string& node, uint64_t incarnation) {
    saved::Node* in = job().nodes[node].mutable_node();
    in->set_name(node);
    in->set_incarnation(incarnation);
  }
  static v1::NodeMessage Join(const std::string& node, uint64_t allocation) {
    v1::NodeMessage message;
    message.set_job("train");
    message.set_incarnation(1);
    message.mutable_join()->set_node(node);
    message.mutable_join()->set_part(allocation);
    return message;
  }
  bool MayJoin(const v1::NodeMessage& message) { return CheckLauncher(state_, message).ok(); }

  state::State state_;
};

TEST_F(PartsTest, OnlyALauncherOfACurrentPartIsLetIn) {
  EXPECT_TRUE(MayJoin(Join("n0", kAllocation)));
  EXPECT_FALSE(MayJoin(Join("n1", kAllocation))) << "it is another node's";
  EXPECT_FALSE(MayJoin(Join("n0", kAllocation + 1))) << "there is none";
  EXPECT_FALSE(MayJoin(Join("n0", 0))) << "the cluster chooses its nodes";
  allocation().set_taken_back(true);
  EXPECT_FALSE(MayJoin(Join("n0", kAllocation)));
  LetIn("n0", 1);
  EXPECT_TRUE(MayJoin(Join("n0", kAllocation))) << "it stops its workers first";
}

TEST_F(PartsTest, ALauncherThatWasAwayHearsHowItsJobEnded) {
  job().saved.set_phase(v1::FAILED);
  EXPECT_FALSE(MayJoin(Join("n0", kAllocation)));
  LetIn("n0", 1);
  EXPECT_TRUE(MayJoin(Join("n0", kAllocation)));
  LetIn("n0", 2);
  v1::NodeMessage join = Join("n0", kAllocation);
  EXPECT_FALSE(MayJoin(join)) << "another life of it took part";
  join.set_generation(1);
  EXPECT_TRUE(MayJoin(join));
  state_.jobs.clear();
  EXPECT_FALSE(MayJoin(join)) << "the job is forgotten";
}

TEST_F(PartsTest, AJobThatNobodySubmittedTakesAnyNode) {
  job().saved.clear_submission();
  EXPECT_TRUE(MayJoin(Join("n7", 0)));
}

TEST_F(PartsTest, APartIsTheLastWhileItsJobHasNoOther) {
  EXPECT_TRUE(IsLastAllocation(state_, allocation().part()));
  Place(6, "n1");
  EXPECT_FALSE(IsLastAllocation(state_, allocation().part()));
  EXPECT_EQ(AllocationsOn(state_, "n1").size(), 1u);
}

TEST_F(PartsTest, LaunchersThatHaveNotJoinedAreAwaited) {
  Place(6, "n1");
  EXPECT_EQ(LaunchersAwaited(state_, job()), "its launchers on n0, n1 to begin");
  LetIn("n0", 1);
  EXPECT_EQ(LaunchersAwaited(state_, job()), "its launcher on n1 to begin");
  LetIn("n1", 1);
  EXPECT_EQ(LaunchersAwaited(state_, job()), "");
}

TEST_F(PartsTest, NodesThatWereTriedAreNamedWithTheirReasons) {
  v1::AvoidedNode* avoided = job().saved.mutable_submission()->add_avoided();
  avoided->set_node("n0");
  avoided->set_reason("no user alice");
  EXPECT_EQ(NodesTried(job()), "n0 (no user alice)");
}

TEST_F(PartsTest, ANodesStatusHasItsPartsAndItsAgent) {
  state_.cluster.nodes["n0"].set_name("n0");
  state_.cluster.nodes["n0"].set_drained(true);
  state_.cluster.nodes["n0"].set_memory(1 << 30);
  Agents agents(absl::Seconds(10));
  agents.Connect("n0", StreamId{1}, 1, {}, MonoTime());
  agents.AddLeftover("n0", 3);
  const std::vector<v1::ClusterNodeStatus> nodes = NodeStatuses(state_, agents);
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_TRUE(nodes[0].drained() && nodes[0].connected());
  EXPECT_EQ(nodes[0].leftovers(), 1u);
  EXPECT_EQ(nodes[0].memory(), 1u << 30);
  ASSERT_EQ(nodes[0].parts_size(), 1);
  EXPECT_EQ(nodes[0].parts(0).id(), kAllocation);
}

}  // namespace

}  // namespace cadre::cluster
