// Tests sinfo's options and its table, whose columns are those of Slurm 23.02.
#include "launcher/slurm/sinfo_text.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/slurm/job_record_for_test.h"
#include "nlohmann/json.hpp"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

// Nodes in all states; n1 has a step, too.
v1::ListNodesReply Cluster() {
  v1::ListNodesReply nodes;
  GiveTestNode("n10", "a", 1, &nodes);
  GiveTestNode("n1", "a", 2, &nodes);
  GiveTestNode("n2", "b", 4, &nodes);
  v1::Part* step = nodes.mutable_nodes(1)->add_parts();
  step->set_within(2);
  step->set_cpus(2);
  for (const char* const name : {"n3", "n4", "n5", "n6"}) {
    v1::ClusterNodeStatus* node = nodes.add_nodes();
    node->set_name(name);
    node->set_cpus(8);
    node->set_gpus(2);
    node->set_memory(uint64_t{64} << 30);
    node->set_connected(name != std::string("n6"));
  }
  nodes.mutable_nodes(4)->set_drained(true);
  nodes.mutable_nodes(4)->set_drain_reason("new fan");
  nodes.mutable_nodes(0)->set_drained(true);
  (*nodes.mutable_nodes(3)->mutable_labels())["switch"] = "s1";
  return nodes;
}

std::string Text(const std::vector<std::string>& arguments,
                 const std::map<std::string, std::string>& environment = {}) {
  const auto options = ReadSinfo(arguments, environment);
  if (!options.ok()) return std::string(options.status().message());
  const auto text = SinfoText(NodesOf(Cluster()), *options, TestSurroundings());
  return text.ok() ? *text : std::string(text.status().message());
}

TEST(SinfoTextTest, UsualColumns) {
  EXPECT_EQ(Text({}),
            "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n"
            "all*         up   infinite      1  down* n6\n"
            "all*         up   infinite      1   drng n10\n"
            "all*         up   infinite      1  drain n4\n"
            "all*         up   infinite      1    mix n1\n"
            "all*         up   infinite      1  alloc n2\n"
            "all*         up   infinite      2   idle n[3,5]\n");
}

TEST(SinfoTextTest, ByNode) {
  EXPECT_EQ(Text({"-N", "-n", "n[1-2,10]"}),
            "NODELIST  NODES PARTITION STATE \n"
            "n1            1      all* mix   \n"
            "n2            1      all* alloc \n"
            "n10           1      all* drng  \n");
  EXPECT_THAT(Text({"-Nl", "-nn4"}), HasSubstr("drained 8       1:8:1  65536        0      1   "
                                               "(null) new fan"));
}

TEST(SinfoTextTest, Formats) {
  EXPECT_EQ(Text({"-h", "-o", "%N %T %c %m %G", "-n", "n3,n1"}),
            "n1 mixed 8 0 (null)\nn3 idle 8 65536 gpu:2\n");
  EXPECT_EQ(Text({"-h", "-o", "%D %C %F"}), "7 14/20/22/56 2/2/3/7\n");
  EXPECT_EQ(Text({"-hs", "-tidle"}), "all*         up   infinite          0/2/0/2 n[3,5]\n");
  EXPECT_EQ(Text({"-h", "-O", "NodeList:4,StateLong:.8", "-td,idle"}),
            "error: Bad state string: d");
  EXPECT_EQ(Text({"-h", "-O", "NodeList:6,StateLong:.8|", "-tidle"}), "n[3,5]    idle|\n");
  EXPECT_EQ(Text({"-h", "-nn3"}, {{"SINFO_FORMAT", "%n %f"}}), "n3 switch=s1\n");
  EXPECT_THAT(Text({"-o", "%?"}), HasSubstr("Invalid node format specification: ?"));
}

TEST(SinfoTextTest, Selections) {
  EXPECT_EQ(Text({"-ho%N", "-tdrain"}), "n[4,10]\n");
  EXPECT_EQ(Text({"-ho%N", "-tDOWN,alloc"}), "n[2,6]\n");
  EXPECT_EQ(Text({"-ho%N", "-d"}), "n6\n");
  EXPECT_EQ(Text({"-ho%D", "-r"}), "6\n");
  EXPECT_EQ(Text({"-ho%N", "-tmaint"}), "");
  EXPECT_EQ(Text({"-ho%N", "-pgpu"}), "");
  EXPECT_THAT(Text({"-R"}), HasSubstr("new fan              Unknown   Unknown             n4\n"));
  EXPECT_THAT(Text({"-t", "idel"}), HasSubstr("did you mean idle?"));
}

TEST(SinfoTextTest, Json) {
  const nlohmann::json json = nlohmann::json::parse(Text({"--json"}));
  ASSERT_EQ(json["nodes"].size(), 7u);
  EXPECT_EQ(json["nodes"][0]["name"], "n1");
  EXPECT_EQ(json["nodes"][0]["alloc_cpus"], 4);
  EXPECT_EQ(json["nodes"][5]["state"][0], "DOWN");
}

}  // namespace
}  // namespace cadre::launcher
