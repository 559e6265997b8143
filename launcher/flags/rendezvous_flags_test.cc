#include "launcher/flags/rendezvous_flags.h"

#include <set>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "launcher/flags/resolve_for_test.h"

namespace cadre::launcher {
namespace {

using for_test::Resolve;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As in a manifest, where no shell takes them away.
TEST(RendezvousFlagsTest, QuotesInConf_AreNotPartOfIt) {
  for (const char* conf : {"'join_timeout=90,last_call_timeout=5'", "\"join_timeout=90\"",
                           "join_timeout=\"90\"", "'join_timeout'='90'", "join_timeout='90',a=b"}) {
    const auto options = Resolve({"--rdzv-conf", conf, "x"});
    ASSERT_OK(options);
    EXPECT_EQ(options->job.rendezvous().join_timeout().seconds(), 90) << conf;
  }
}

TEST(RendezvousFlagsTest, PortZero_IsForAJobOfOneNodeOnly) {
  for (const char* endpoint : {"localhost:0", "[::1]:0"}) {
    const auto one = Resolve({"--rdzv-endpoint", endpoint, "--rdzv-backend", "c10d", "train"});
    ASSERT_OK(one);
    EXPECT_THAT(one->endpoints, IsEmpty());
    EXPECT_THAT(Resolve({"--rdzv-endpoint", endpoint, "--nnodes", "1:2", "train"}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("for 1 to 2 nodes")));
  }
}

TEST(RendezvousFlagsTest, ANodeRankOutOfRange_IsRefused) {
  const std::vector<std::string> two = {"--nnodes", "2", "--rdzv-endpoint", "head", "--node-rank"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), two.begin(), two.end());
    return Resolve(more);
  };
  EXPECT_OK(with({"1", "train"}));
  EXPECT_OK(with({"2", "--spares", "1", "train"}));
  EXPECT_THAT(with({"2", "train"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--node-rank: expected a rank from 0 to 1 of 2 nodes, got '2'"));
}

TEST(RendezvousFlagsTest, Identity_FillsWhatFlagsLeaveOpen) {
  Identity slurm;
  slurm.source = "Slurm";
  slurm.nodes = 2;
  slurm.node_rank = 1;
  slurm.node_name = "n2";
  slurm.node_names = {"n1", "n2"};
  slurm.endpoint_host = "n1";
  slurm.endpoint_port = 23456;
  slurm.job_name = "slurm-17-0";
  auto options = Resolve({"x"}, {}, std::nullopt, slurm);
  ASSERT_OK(options);
  EXPECT_EQ(options->job.nodes().min(), 2u);
  EXPECT_EQ(options->endpoints[0].host, "n1");
  EXPECT_EQ(options->endpoints[0].port, 23456);
  EXPECT_EQ(options->job.name(), "slurm-17-0");
  EXPECT_THAT(options->expected_nodes, ElementsAre("n1", "n2"));
  options = Resolve({"--nnodes", "1:2", "--rdzv-endpoint", "other", "x"}, {}, std::nullopt, slurm);
  ASSERT_OK(options);
  EXPECT_EQ(options->job.nodes().min(), 1u);
  EXPECT_EQ(options->endpoints[0].host, "other");
  // Slurm's list does not override --standalone.
  EXPECT_TRUE(Resolve({"--standalone", "x"}, {}, std::nullopt, slurm)->endpoints.empty());
}

// A pod with an index, ranks of an mpirun: one of several, and never a world of its own.
TEST(RendezvousFlagsTest, AnUnknownNumberOfNodes_IsNotOne) {
  Identity pod;
  pod.source = "Kubernetes";
  pod.node_rank = 0;
  pod.unsaid = "this is pod 0";
  EXPECT_THAT(
      Resolve({"x"}, {}, std::nullopt, pod),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("this is pod 0: add --nnodes N"), HasSubstr("--standalone"))));
  EXPECT_OK(Resolve({"--standalone", "x"}, {}, std::nullopt, pod));
  EXPECT_OK(Resolve({"--nnodes", "2", "--rdzv-endpoint", "head", "x"}, {}, std::nullopt, pod));
  v1::JobSpec spec;
  spec.mutable_nodes()->set_min(1);
  spec.mutable_nodes()->set_max(1);
  EXPECT_OK(Resolve({"x"}, {}, spec, pod));
  pod.node_rank = 1;
  EXPECT_THAT(Resolve({"x"}, {}, spec, pod),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("asks for 1 node, but Kubernetes says that this is node 1"),
                             HasSubstr("--standalone"))));
  EXPECT_THAT(Resolve({"--nnodes", "1", "--rdzv-endpoint", "head", "x"}, {}, std::nullopt, pod),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("says that this is node 1")));
}

// A batch script runs on the first of its job's nodes: what was meant for all must not train there
// alone without a word.
TEST(RendezvousFlagsTest, AloneInAJobOfSeveralNodesOfSlurms_IsSaid) {
  const std::map<std::string, std::string> batch = {{"SLURM_JOB_ID", "9"}, {"SLURM_NNODES", "4"}};
  const auto alone = Resolve({"x"}, batch);
  ASSERT_OK(alone);
  EXPECT_THAT(alone->notices, ElementsAre(HasSubstr("SLURM_NNODES is 4")));
  EXPECT_THAT(Resolve({"--nnodes", "1", "x"}, batch)->notices, IsEmpty());
  EXPECT_THAT(Resolve({"--standalone", "x"}, batch)->notices, IsEmpty());
  EXPECT_THAT(Resolve({"x"}, {{"SLURM_NNODES", "1"}})->notices, IsEmpty());
}

TEST(RendezvousFlagsTest, TheNodesOfALaunch_AreToldWhereItServes) {
  Identity slurm;
  slurm.source = "Slurm";
  slurm.nodes = 2;
  slurm.endpoint_host = "n1";
  slurm.launch = "slurm-17.0";
  EXPECT_TRUE(Resolve({"x"}, {}, std::nullopt, slurm)->by_board);
  // A home directory that they may not share, a server that the user named.
  EXPECT_FALSE(Resolve({"--token-file", "t", "x"}, {}, std::nullopt, slurm)->by_board);
  EXPECT_FALSE(Resolve({"--rdzv-endpoint", "head", "x"}, {}, std::nullopt, slurm)->by_board);
}

TEST(RendezvousFlagsTest, StandaloneThatIsSetToNo_IsNotGiven) {
  Identity slurm;
  slurm.nodes = 2;
  slurm.endpoint_host = "n1";
  for (const char* no : {"0", "no", "false"}) {
    const auto options = Resolve({"x"}, {{"CADRE_STANDALONE", no}}, std::nullopt, slurm);
    ASSERT_OK(options);
    EXPECT_EQ(options->job.nodes().min(), 2u);
    EXPECT_EQ(options->endpoints.size(), 1u);
  }
}

TEST(RendezvousFlagsTest, VariablesThatAreNotForFlags_SetNone) {
  const std::map<std::string, std::string> set = {{"CADRE_TOKEN_FILE", "/t"},
                                                  {"CADRE_ENCRYPT", "1"}};
  EXPECT_EQ(Resolve({"x"}, set)->token_file, "/t");
  EXPECT_TRUE(Resolve({"x"}, set)->job.encrypt());
  std::map<std::string, std::string> of_a_worker = set;
  of_a_worker["CADRE_AGENT"] = "/socket";
  EXPECT_EQ(Resolve({"x"}, of_a_worker)->token_file, "");
  EXPECT_FALSE(Resolve({"x"}, of_a_worker)->job.encrypt());
  EXPECT_EQ(Resolve({"--token-file", "/t", "x"}, of_a_worker)->token_file, "/t");
  EXPECT_EQ(Resolve({"x"}, {{"CADRE_MASTER_PORT", "1234"}})->master_port, 1234u);
  EXPECT_EQ(Resolve({"x"}, {{"CADRE_MASTER_PORT", "tcp://10.0.0.1:29400"}})->master_port, 0u);
}

// Computed by: printf My_Job | openssl dgst -sha256 -hmac 'cadre rdzv-id'.
TEST(RendezvousFlagsTest, RendezvousIds_ThatDifferAreDifferentJobs) {
  const auto name = [](const std::string& id) {
    return Resolve({"--rdzv-id", id, "x"})->job.name();
  };
  EXPECT_EQ(name("my-job"), "my-job");
  EXPECT_EQ(name("4711"), "4711");
  EXPECT_EQ(name("My_Job"), "my-job-6bd555e6");
  const std::string prefix(70, 'x');
  const std::set<std::string> names = {name("my_job"), name("my.job"),     name("MY-JOB"),
                                       name("___"),    name(prefix + "1"), name(prefix + "2")};
  EXPECT_EQ(names.size(), 6u);
  for (const std::string& one : names) EXPECT_LE(one.size(), 63u);
  EXPECT_EQ(Resolve({"--rdzv-id=", "/bin/true"})->job.name(), "true");
}

TEST(RendezvousFlagsTest, JobNames_ComeFromTheProgram) {
  EXPECT_EQ(Resolve({"/a/b/Train_1.py"})->job.name(), "train-1");
  EXPECT_EQ(Resolve({"/bin/true"})->job.name(), "true");
  EXPECT_EQ(JobNameFrom("___"), "job");
  EXPECT_EQ(JobNameFrom(std::string(100, 'x')).size(), 63u);
}

}  // namespace
}  // namespace cadre::launcher
