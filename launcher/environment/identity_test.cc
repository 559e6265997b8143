#include "launcher/environment/identity.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HostListTest, Forms) {
  EXPECT_THAT(*ExpandHostList("n1"), ElementsAre("n1"));
  EXPECT_THAT(*ExpandHostList("n[01-03,07],g-a[1-2]"),
              ElementsAre("n01", "n02", "n03", "n07", "g-a1", "g-a2"));
  EXPECT_THAT(*ExpandHostList("n[9-10]"), ElementsAre("n9", "n10"));
  EXPECT_THAT(*ExpandHostList("n[098-101]x"), ElementsAre("n098x", "n099x", "n100x", "n101x"));
  EXPECT_THAT(*ExpandHostList("r[1-2]n[1,3]"), ElementsAre("r1n1", "r1n3", "r2n1", "r2n3"));
}

TEST(HostListTest, Malformed_IsRefused) {
  for (const char* bad : {"", "n[", "n]", "n[]", "n[1-", "n[3-1]", "a,,b", "a,", "n[1-2", "n[[1]]",
                          "n[0-99999999]", "n[1-999]m[1-999]", "n[a-b]"}) {
    EXPECT_THAT(ExpandHostList(bad), StatusIs(absl::StatusCode::kInvalidArgument)) << bad;
  }
}

TEST(TasksPerNodeTest, Forms) {
  EXPECT_THAT(*ExpandTasksPerNode("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(*ExpandTasksPerNode("4"), ElementsAre(4));
  for (const char* bad : {"", "x", "2(x", "2(x3", "2(3)", "2(x99999999)", "1,"}) {
    EXPECT_THAT(ExpandTasksPerNode(bad), StatusIs(absl::StatusCode::kInvalidArgument)) << bad;
  }
}

TEST(SlurmTest, Step_NamesNodesAndEndpoint) {
  const auto identity = DetectIdentity({{"SLURM_JOB_ID", "17"},
                                        {"SLURM_STEP_ID", "0"},
                                        {"SLURM_NODEID", "1"},
                                        {"SLURM_STEP_NODELIST", "n[1-3]"},
                                        {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"}});
  ASSERT_OK(identity);
  ASSERT_TRUE(identity->has_value());
  EXPECT_EQ((*identity)->source, "Slurm");
  EXPECT_EQ((*identity)->nodes, 3u);
  EXPECT_EQ((*identity)->node_rank, 1);
  EXPECT_EQ((*identity)->node_name, "n2");
  EXPECT_EQ((*identity)->endpoint_host, "n1");
  EXPECT_EQ((*identity)->endpoint_port, PortFor("slurm 17.0"));
  EXPECT_EQ((*identity)->job_name, "slurm-17-0");
}

TEST(SlurmTest, BatchScript_IsNoStep) {
  const auto identity = DetectIdentity(
      {{"SLURM_JOB_ID", "17"}, {"SLURM_NODEID", "0"}, {"SLURM_JOB_NODELIST", "n[1-3]"}});
  ASSERT_OK(identity);
  EXPECT_FALSE(identity->has_value());
}

TEST(SlurmTest, SeveralTasksPerNode_SaysWhatToDo) {
  EXPECT_THAT(ReadSlurm({{"SLURM_NODEID", "0"},
                         {"SLURM_STEP_NODELIST", "n[1-2]"},
                         {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--ntasks-per-node=1")));
  EXPECT_THAT(ReadSlurm({{"SLURM_NODEID", "5"}, {"SLURM_STEP_NODELIST", "n[1-2]"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("SLURM_NODEID")));
}

TEST(MpiTest, AllOnOneMachine_UsesLoopback) {
  const auto identity = ReadMpi({{"OMPI_COMM_WORLD_RANK", "1"},
                                 {"OMPI_COMM_WORLD_SIZE", "2"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                 {"PMIX_NAMESPACE", "abc"}});
  ASSERT_OK(identity);
  EXPECT_EQ((*identity)->endpoint_host, "127.0.0.1");
  EXPECT_EQ((*identity)->node_name, "node1");
}

TEST(MpiTest, OnePerNode_DoesNotInventAnEndpoint) {
  const auto identity = ReadMpi({{"OMPI_COMM_WORLD_RANK", "1"},
                                 {"OMPI_COMM_WORLD_SIZE", "4"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  ASSERT_OK(identity);
  EXPECT_EQ((*identity)->nodes, 4u);
  EXPECT_EQ((*identity)->endpoint_host, "");
}

TEST(MpiTest, SeveralPerNode_SaysWhatToDo) {
  EXPECT_THAT(ReadMpi({{"OMPI_COMM_WORLD_RANK", "1"},
                       {"OMPI_COMM_WORLD_SIZE", "4"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ppr:1:node")));
}

TEST(TorchrunTest, MasterAddr_NeedsTheNumberOfNodes) {
  auto identity = ReadTorchrun(
      {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "1234"}, {"NODE_RANK", "1"}, {"NNODES", "2"}});
  ASSERT_OK(identity);
  EXPECT_EQ((*identity)->endpoint_host, "head");
  EXPECT_EQ((*identity)->endpoint_port, 1234);
  EXPECT_EQ((*identity)->node_rank, 1);
  identity = ReadTorchrun({{"MASTER_ADDR", "head"}});
  ASSERT_OK(identity);
  EXPECT_FALSE(identity->has_value());
}

TEST(TorchrunTest, InsideAnotherLaunchersWorker_SaysNothing) {
  const auto identity =
      ReadTorchrun({{"MASTER_ADDR", "head"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "0"}});
  ASSERT_OK(identity);
  EXPECT_FALSE(identity->has_value());
}

TEST(TorchrunTest, BadNumber_NamesTheVariable) {
  EXPECT_THAT(ReadTorchrun({{"MASTER_ADDR", "h"}, {"NNODES", "two"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("NNODES")));
  EXPECT_THAT(ReadTorchrun({{"MASTER_ADDR", "h"}, {"NNODES", "2"}, {"MASTER_PORT", "70000"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("MASTER_PORT")));
}

TEST(KubernetesTest, IndexedJob_WithItsService) {
  const auto identity = ReadKubernetes(
      {{"JOB_COMPLETION_INDEX", "2"}, {"HOSTNAME", "train-2"}, {"CADRE_SERVICE", "train-svc"}});
  ASSERT_OK(identity);
  EXPECT_EQ((*identity)->endpoint_host, "train-0.train-svc");
  EXPECT_EQ((*identity)->job_name, "train");
  EXPECT_EQ((*identity)->node_rank, 2);
}

TEST(IdentityTest, PlainMachine_SaysNothing) {
  const auto identity = DetectIdentity({{"HOME", "/root"}});
  ASSERT_OK(identity);
  EXPECT_FALSE(identity->has_value());
}

TEST(IdentityTest, PortFor_StaysInRangeAndDiffers) {
  EXPECT_NE(PortFor("a"), PortFor("b"));
  for (int i = 0; i < 1000; ++i) {
    const int port = PortFor(absl::StrCat(i));
    ASSERT_GE(port, 20000);
    ASSERT_LT(port, 29400);
  }
}

}  // namespace
}  // namespace cadre
