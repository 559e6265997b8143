#include "rendezvous/cluster/parts.h"

#include <string>

#include "gtest/gtest.h"

namespace cadre::cluster {
namespace {

constexpr uint64_t kPart = 5;

// Job "train" of alice with one part, on n0.
class PartsTest : public testing::Test {
 protected:
  PartsTest() {
    state::Job& train = state_.jobs["train"];
    train.saved.mutable_spec()->set_name("train");
    train.saved.mutable_submission()->set_user("alice");
    train.saved.set_phase(v1::GATHERING);
    Place(kPart, "n0");
  }
  state::Job& job() { return state_.jobs.at("train"); }
  saved::PlacedPart& part() { return state_.cluster.parts.at(kPart); }
  void Place(uint64_t id, const std::string& node) {
    v1::Part* placed = state_.cluster.parts[id].mutable_part();
    placed->set_id(id);
    placed->set_job("train");
    placed->set_node(node);
  }
  void LetIn(const std::string& node, uint64_t incarnation) {
    saved::Node* in = job().nodes[node].mutable_node();
    in->set_name(node);
    in->set_incarnation(incarnation);
  }
  static v1::NodeMessage Join(const std::string& node, uint64_t part) {
    v1::NodeMessage message;
    message.set_job("train");
    message.set_incarnation(1);
    message.mutable_join()->set_node(node);
    message.mutable_join()->set_part(part);
    return message;
  }
  bool MayJoin(const v1::NodeMessage& message) { return CheckLauncher(state_, message).ok(); }

  state::State state_;
};

TEST_F(PartsTest, OnlyALauncherOfACurrentPartIsLetIn) {
  EXPECT_TRUE(MayJoin(Join("n0", kPart)));
  EXPECT_FALSE(MayJoin(Join("n1", kPart))) << "it is another node's";
  EXPECT_FALSE(MayJoin(Join("n0", kPart + 1))) << "there is none";
  EXPECT_FALSE(MayJoin(Join("n0", 0))) << "the cluster chooses its nodes";
  part().set_taken_back(true);
  EXPECT_FALSE(MayJoin(Join("n0", kPart)));
  LetIn("n0", 1);
  EXPECT_TRUE(MayJoin(Join("n0", kPart))) << "it stops its workers first";
}

TEST_F(PartsTest, ALauncherThatWasAwayHearsHowItsJobEnded) {
  job().saved.set_phase(v1::FAILED);
  EXPECT_FALSE(MayJoin(Join("n0", kPart)));
  LetIn("n0", 1);
  EXPECT_TRUE(MayJoin(Join("n0", kPart)));
  LetIn("n0", 2);
  v1::NodeMessage join = Join("n0", kPart);
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
  EXPECT_TRUE(IsLastPart(state_, part().part()));
  Place(6, "n1");
  EXPECT_FALSE(IsLastPart(state_, part().part()));
  EXPECT_EQ(PartsOn(state_, "n1").size(), 1u);
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
  Agents agents(absl::Seconds(10));
  agents.Connect("n0", StreamId{1}, 1, {}, MonoTime());
  agents.AddLeftover("n0", 3);
  const std::vector<v1::ClusterNodeStatus> nodes = NodeStatuses(state_, agents);
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_TRUE(nodes[0].drained() && nodes[0].connected());
  EXPECT_EQ(nodes[0].leftovers(), 1u);
  ASSERT_EQ(nodes[0].parts_size(), 1);
  EXPECT_EQ(nodes[0].parts(0).id(), kPart);
}

}  // namespace
}  // namespace cadre::cluster
