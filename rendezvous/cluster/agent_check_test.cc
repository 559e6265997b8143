#include "rendezvous/cluster/agent_check.h"

#include <string>

#include "gtest/gtest.h"
#include "rpc/versions.h"

namespace cadre::cluster {
namespace {

v1::AgentJoined Joined() {
  v1::AgentJoined agent;
  agent.set_node("n0");
  agent.set_cpus(8);
  agent.set_gpus(2);
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
}

}  // namespace
}  // namespace cadre::cluster
