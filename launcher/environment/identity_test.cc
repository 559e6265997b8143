#include "launcher/environment/identity.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

EnvironmentMap SlurmStep(EnvironmentMap more) {
  EnvironmentMap environment = {{"SLURM_JOB_ID", "17"},
                                {"SLURM_STEP_ID", "0"},
                                {"SLURM_NODEID", "0"},
                                {"SLURM_STEP_NODELIST", "n[1-2]"}};
  for (auto& [name, value] : more) environment[name] = value;
  return environment;
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
  EXPECT_EQ((*identity)->launch, "slurm-17.0");
  EXPECT_EQ((*ReadSlurm(SlurmStep({{"SLURM_RESTART_COUNT", "2"}})))->launch, "slurm-17.0.r2");
  EXPECT_EQ((*identity)->serves, false);
  EXPECT_EQ((*identity)->local_tasks, 1u);
}

TEST(ClusterTest, AnAgentSaysWhatItStarts) {
  const auto identity = DetectIdentity({{"CADRE_CLUSTER_PART", "7"},
                                        {"CADRE_CLUSTER_NODE", "n2"},
                                        {"CADRE_CLUSTER_NODES", "n1,n2"},
                                        {"MASTER_ADDR", "elsewhere"}});
  ASSERT_OK(identity);
  EXPECT_EQ((*identity)->allocation, 7u);
  EXPECT_EQ((*identity)->node_name, "n2");
  EXPECT_THAT((*identity)->node_names, ElementsAre("n1", "n2"));
  EXPECT_EQ((*identity)->serves, false);
  EXPECT_THAT(DetectIdentity({{"CADRE_CLUSTER_PART", "x"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("CADRE_CLUSTER_PART")));
}

TEST(SlurmTest, BatchScript_IsNoStep) {
  const auto identity = DetectIdentity(
      {{"SLURM_JOB_ID", "17"}, {"SLURM_NODEID", "0"}, {"SLURM_JOB_NODELIST", "n[1-3]"}});
  ASSERT_OK(identity);
  EXPECT_FALSE(identity->has_value());
}

TEST(SlurmTest, SeveralTasksPerNode_OneIsTheAgent) {
  const auto identity = ReadSlurm(SlurmStep(
      {{"SLURM_STEP_TASKS_PER_NODE", "2,4"}, {"SLURM_NODEID", "1"}, {"SLURM_LOCALID", "3"}}));
  ASSERT_OK(identity);
  EXPECT_EQ((*identity)->local_tasks, 4u);
  EXPECT_EQ((*identity)->local_task, 3u);
}

// srun -w n2 -n1 a : -w n1 -n2 a
TEST(SlurmTest, ComponentsInAnotherOrderThanTheList_GoByTheNodesName) {
  const auto identity = ReadSlurm(SlurmStep({{"SLURMD_NODENAME", "n1"},
                                             {"SLURM_NODEID", "1"},
                                             {"SLURM_LOCALID", "1"},
                                             {"SLURM_STEP_TASKS_PER_NODE", "2,1"}}));
  ASSERT_OK(identity);
  EXPECT_EQ((*identity)->node_name, "n1");
  EXPECT_EQ((*identity)->node_rank, 0);
  EXPECT_EQ((*identity)->serves, true);
  EXPECT_EQ((*identity)->local_tasks, 2u);
  EXPECT_EQ((*identity)->local_task, 1u);
}

TEST(SlurmTest, Contradictions_NameTheVariable) {
  const auto refused = [](EnvironmentMap more, const char* variable) {
    EXPECT_THAT(ReadSlurm(SlurmStep(std::move(more))),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(variable)));
  };
  refused({{"SLURM_NODEID", "5"}}, "SLURM_NODEID");
  refused({{"SLURM_STEP_TASKS_PER_NODE", "2(x3)"}}, "SLURM_STEP_TASKS_PER_NODE");
  refused({{"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}}, "SLURM_LOCALID");
  refused({{"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}, {"SLURM_LOCALID", "2"}}, "SLURM_LOCALID");
  refused({{"SLURM_STEP_ID", ""}}, "SLURM_STEP_ID");
  // Steps of several components, of which this one sees only a part, or which share a node.
  refused({{"SLURM_STEP_NUM_NODES", "3"}}, "SLURM_STEP_NUM_NODES is 3");
  refused({{"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}, {"SLURM_STEP_NUM_TASKS", "5"}},
          "SLURM_STEP_NUM_TASKS is 5");
  refused({{"SLURM_STEP_NODELIST", "n1,n1"}}, "'n1,n1' names a node twice");
  refused({{"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}, {"SLURM_LOCALID", "1"}}, "SLURM_LOCALID");
}

TEST(SlurmTest, GpuPerTask_SaysWhatToDo) {
  EnvironmentMap step = SlurmStep({{"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                                   {"SLURM_LOCALID", "0"},
                                   {"SLURM_GPUS_ON_NODE", "2"},
                                   {"CUDA_VISIBLE_DEVICES", "0"}});
  EXPECT_THAT(ReadSlurm(step),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--gpu-bind=none")));
  step["CUDA_VISIBLE_DEVICES"] = "0,1";
  EXPECT_OK(ReadSlurm(step));
}

EnvironmentMap OpenMpi(EnvironmentMap more) {
  EnvironmentMap environment = {
      {"PMIX_NAMESPACE", "prterun-n1-7@1"}, {"PMIX_HOSTNAME", "n2"},
      {"OMPI_MCA_orte_num_nodes", "2"},     {"OMPI_COMM_WORLD_RANK", "3"},
      {"OMPI_COMM_WORLD_SIZE", "4"},        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  for (auto& [name, value] : more) environment[name] = value;
  return environment;
}

TEST(MpiTest, OpenMpi_NamesTheLaunchAndCountsRanks) {
  const auto identity = DetectIdentity(OpenMpi({}));
  ASSERT_OK(identity);
  EXPECT_EQ((*identity)->source, "Open MPI");
  EXPECT_EQ((*identity)->node_name, "n2");
  EXPECT_EQ((*identity)->local_tasks, 2u);
  EXPECT_EQ((*identity)->local_task, 1u);
  EXPECT_EQ((*identity)->tasks, 4u);
  EXPECT_EQ((*identity)->task, 3u);
  EXPECT_EQ((*identity)->launch, "mpi-prterun-n1-7@1");
}

TEST(MpiTest, WithinSlurm_TheNearerLauncherIsBelieved) {
  const auto identity = DetectIdentity(OpenMpi(SlurmStep({})));
  ASSERT_OK(identity);
  EXPECT_EQ((*identity)->source, "Open MPI");
}

// 2 and 2, or 2, 1 and 1: this node cannot know. Five ranks of which two are here were one node.
TEST(MpiTest, SeveralNodes_AreNeverCountedByOneAlone) {
  for (const char* size : {"4", "5"}) {
    for (const auto& identity : {ReadOpenMpi(OpenMpi({{"OMPI_COMM_WORLD_SIZE", size}})),
                                 ReadPmi({{"PMI_RANK", "1"},
                                          {"PMI_SIZE", size},
                                          {"MPI_LOCALRANKID", "0"},
                                          {"MPI_LOCALNRANKS", "2"}}),
                                 ReadPmi({{"PMI_RANK", "1"}, {"PMI_SIZE", size}})}) {
      ASSERT_OK(identity);
      EXPECT_EQ((*identity)->nodes, 0u);
      EXPECT_EQ((*identity)->node_rank, -1);
      EXPECT_THAT((*identity)->nodes_hint, HasSubstr(absl::StrCat("_SIZE=", size)));
    }
  }
  EXPECT_THAT((*ReadPmi({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}))->nodes_hint,
              HasSubstr("MPI_LOCALNRANKS is not set"));
}

TEST(MpiTest, AllRanksHere_AreOneNode) {
  const auto identity = ReadOpenMpi(OpenMpi({{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}));
  ASSERT_OK(identity);
  EXPECT_EQ((*identity)->nodes, 1u);
}

TEST(MpiTest, Contradictions_AreRefused) {
  EXPECT_THAT(
      ReadOpenMpi(OpenMpi({{"OMPI_COMM_WORLD_LOCAL_RANK", "2"}})),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("2 of 2 on this node"), HasSubstr("OMPI_COMM_WORLD_LOCAL_RANK=2"))));
}

TEST(MpiTest, Pmi_AnswersQuestions) {
  const auto identity = DetectIdentity({{"PMI_RANK", "1"},
                                        {"PMI_SIZE", "4"},
                                        {"MPI_LOCALRANKID", "0"},
                                        {"MPI_LOCALNRANKS", "1"},
                                        {"PMI_FD", "6"}});
  ASSERT_OK(identity);
  EXPECT_EQ((*identity)->pmi, 6);
  EXPECT_EQ((*identity)->endpoint_host, "");
  EXPECT_EQ(MpiLaunchName("kvs/1"), "mpi-kvs_1");
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
  EXPECT_TRUE((*identity)->endpoint_comes_later);
  EXPECT_EQ((*identity)->job_name, "train");
  EXPECT_EQ((*identity)->node_rank, 2);
  EXPECT_EQ((*identity)->nodes, 0u);
  EXPECT_THAT((*identity)->nodes_hint, HasSubstr("JOB_COMPLETION_INDEX=2"));
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
}  // namespace cadre::launcher
