#include "launcher/display/cluster_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::ClusterNodeStatus* AddNode(v1::ListNodesReply* nodes, const std::string& name) {
  v1::ClusterNodeStatus* node = nodes->add_nodes();
  node->set_name(name);
  node->set_cpus(4);
  node->set_connected(true);
  return node;
}

v1::JobStatus Queued(const std::string& name, int priority, uint64_t submission) {
  v1::JobStatus job;
  job.set_name(name);
  job.set_phase(v1::QUEUED);
  job.set_user("ann");
  job.set_priority(priority);
  job.set_submission(submission);
  job.set_waiting_for(name + "'s nodes");
  return job;
}

class ClusterTextTest : public testing::Test {
 protected:
  ClusterTextTest() {
    v1::ClusterNodeStatus* n0 = AddNode(&nodes_, "n0");
    v1::Part* part = n0->add_parts();
    part->set_job("mnist");
    part->set_cpus(3);
    (*n0->mutable_labels())["switch"] = "s1";
    (*n0->mutable_labels())["rack"] = "7";
    v1::ClusterNodeStatus* n1 = AddNode(&nodes_, "n1");
    n1->set_drained(true);
    n1->set_drain_reason("fan\x1b");
    n1->set_user("bob");
  }
  v1::ListNodesReply nodes_;
};

TEST_F(ClusterTextTest, ALineForEachNode) {
  const std::string table = ClusterNodesTable(nodes_);
  EXPECT_THAT(table,
              testing::ContainsRegex("n0 +up +3/4 +0/0 +any but root +rack=7,switch=s1 +mnist\n"));
  EXPECT_THAT(table, testing::ContainsRegex("n1 +up, drained: fan[^\n\x1b]* +0/4 +0/0 +bob"));
}

TEST_F(ClusterTextTest, WhatIsNotKnownToBeFreeIsNotShownSo) {
  nodes_.mutable_nodes(0)->set_connected(false);
  nodes_.mutable_nodes(0)->clear_parts();
  nodes_.mutable_nodes(1)->set_leftovers(2);
  const std::string table = ClusterNodesTable(nodes_);
  EXPECT_THAT(table, testing::ContainsRegex("n0 +away +\\?/4 +\\?/0"));
  EXPECT_THAT(table, testing::ContainsRegex(", ending 2 earlier launchers +\\?/4"));
  EXPECT_THAT(ClusterSummary(nodes_, {}), HasSubstr("0 of 0 CPUs in use\n"));
}

TEST_F(ClusterTextTest, TheNodesThatAJobAvoidsAreNamedWithTheReason) {
  v1::JobStatus job;
  EXPECT_EQ(AvoidedText(job), "");
  v1::AvoidedNode* avoided = job.add_avoided();
  avoided->set_node("n0");
  avoided->set_reason("no user\x1b ann");
  EXPECT_EQ(AvoidedText(job), "avoids n0: no user\\x1b ann\n");
  job.add_nodes()->set_name("n0");
  EXPECT_EQ(AvoidedText(job), "") << "it could not run without it";
}

TEST_F(ClusterTextTest, WhatHoldsSlotsAfterItsJobIsNamed) {
  nodes_.mutable_nodes(0)->add_remains("a process of job mnist outlives SIGKILL: pid 7 is in \x1b");
  EXPECT_THAT(ClusterNodesTable(nodes_),
              HasSubstr("\non n0 a process of job mnist outlives SIGKILL: pid 7 is in \\x1b; until "
                        "then its slots are taken\n"));
}

TEST_F(ClusterTextTest, OfAnotherVersionThanTheServersIsSaid) {
  EXPECT_THAT(ClusterNodesTable(nodes_), testing::Not(HasSubstr("runs Cadre")));
  nodes_.mutable_nodes(0)->set_version("0.2");
  EXPECT_THAT(ClusterNodesTable(nodes_),
              HasSubstr("\nn0 runs Cadre 0.2, which is not the server's version\n"));
}

TEST_F(ClusterTextTest, AFewLinesForAll) {
  EXPECT_EQ(ClusterSummary(v1::ListNodesReply(), {Queued("low", 0, 1)}), "");
  EXPECT_THAT(ClusterSummary(nodes_, {}), HasSubstr("cluster: 2 nodes, 3 of 8 CPUs in use\n"));
  nodes_.mutable_nodes(1)->set_gpus(1);
  EXPECT_THAT(ClusterSummary(nodes_, {}), HasSubstr("3 of 8 CPUs in use, 0 of 1 GPU\n"));
  nodes_.mutable_nodes(1)->set_gpus(0);
  nodes_.mutable_nodes(0)->set_connected(false);
  const std::string summary =
      ClusterSummary(nodes_, {Queued("late", 0, 3), Queued("low", 0, 1), Queued("high", 5, 4)});
  // What runs there is not known, and nothing is free.
  EXPECT_THAT(summary, HasSubstr("cluster: 2 nodes, 0 of 4 CPUs in use\n"));
  EXPECT_THAT(summary, HasSubstr("away: n0\n"));
  EXPECT_THAT(summary, HasSubstr("drained: n1 (fan"));
  EXPECT_THAT(summary,
              HasSubstr("queue: 3 jobs; high of ann, priority 5, waits for high's nodes\n"));
  for (int i = 2; i < 12; ++i) AddNode(&nodes_, "n" + std::to_string(i))->set_connected(false);
  EXPECT_THAT(ClusterSummary(nodes_, {}), HasSubstr("away: n0, n2, n3, n4, n5, n6 and 5 more\n"));
}

TEST_F(ClusterTextTest, APipeIsToldWhatChanges) {
  ClusterLines lines;
  EXPECT_THAT(lines.Update(nodes_), ElementsAre(testing::StartsWith("node n1: up, drained: fan")));
  EXPECT_THAT(lines.Update(nodes_), IsEmpty());
  AddNode(&nodes_, "n2");
  nodes_.mutable_nodes(0)->set_connected(false);
  EXPECT_THAT(lines.Update(nodes_), ElementsAre("node n0: away", "node n2: up"));
  nodes_.mutable_nodes()->DeleteSubrange(0, 1);
  EXPECT_THAT(lines.Update(nodes_), ElementsAre("node n0: gone"));
}

}  // namespace
}  // namespace cadre::launcher
