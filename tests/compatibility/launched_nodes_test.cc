// Ranks on two nodes, which are network namespaces, and on two machines of a Slurm cluster, without
// a launcher of ours. Needs root, and for the latter slurm-wlm and munge; skipped without.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/compatibility/launched_line.h"
#include "tests/testing/launch.h"
#include "tests/testing/node_network.h"
#include "tests/testing/pypi_python.h"
#include "tests/testing/slurm_fixture.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Minutes(2);

class LaunchedNodesTest : public SlurmFixture {
 protected:
  static void SetUpTestSuite() {
    probe_ = std::filesystem::absolute(kLaunchedProbe);
    mnist_ = std::filesystem::absolute("examples/mnist_cnn/mnist_cnn");
    SlurmFixture::SetUpTestSuite();
  }
  void SetUp() override {
    SlurmFixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    secret_ = cluster_->directory() + "/secret";
    ASSERT_OK(SharedToken(secret_));
  }

  static std::unique_ptr<Process> Srun(const std::vector<std::string>& arguments,
                                       std::map<std::string, std::string> env = {}) {
    std::vector<std::string> argv = {"srun"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    argv.push_back(probe_);
    return cluster_->Run(argv, std::move(env));
  }
  static void ExpectAll(const Process& process, int size, int per_node) {
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_THAT(process.standard_output(), HasSubstr(LaunchedLine(rank, size, per_node)))
          << OutputOf(process);
    }
  }

  static std::string probe_, mnist_;
  std::string secret_;
};
std::string LaunchedNodesTest::probe_, LaunchedNodesTest::mnist_;

TEST_F(LaunchedNodesTest, SrunOnOneNodeNeedsNothing) {
  const auto srun = Srun({"-N1", "-n2"});
  EXPECT_EQ(srun->Wait(kTimeout), 0) << OutputOf(*srun);
  ExpectAll(*srun, 2, 2);
}

TEST_F(LaunchedNodesTest, SrunOnTwoNodesNeedsASecret) {
  auto srun = Srun({"-N2", "--ntasks-per-node=2"}, {{"CADRE_SECRET_FILE", secret_}});
  EXPECT_EQ(srun->Wait(kTimeout), 0) << OutputOf(*srun);
  ExpectAll(*srun, 4, 2);
  EXPECT_THAT(srun->standard_output(),
              AllOf(HasSubstr("at=10.77.0.1 "), HasSubstr("at=10.77.0.2 ")));
  srun = Srun({"-N2", "--ntasks-per-node=2"});
  EXPECT_EQ(srun->Wait(kTimeout), 1) << OutputOf(*srun);
  EXPECT_THAT(srun->standard_error(),
              AllOf(HasSubstr("CADRE_SECRET_FILE"), HasSubstr("there are several nodes")));
}

// The same program that `cadre run` starts.
TEST_F(LaunchedNodesTest, TheMnistExampleTrainsUnderSrun) {
  const auto srun = cluster_->Run(
      {"srun", "-N2", "--ntasks-per-node=1", mnist_, "--epochs", "1", "--limit", "256"},
      {{"CADRE_SECRET_FILE", secret_}, {"OMP_NUM_THREADS", "1"}, {"HOME", cluster_->directory()}});
  EXPECT_EQ(srun->Wait(kTimeout), 0) << OutputOf(*srun);
  EXPECT_THAT(srun->standard_output(), HasSubstr("parameters equal on 2 ranks")) << OutputOf(*srun);
}

TEST_F(LaunchedNodesTest, RanksThatAreSpreadAreRefused) {
  const auto srun = Srun({"-N2", "--ntasks-per-node=2", "--distribution=cyclic"},
                         {{"CADRE_SECRET_FILE", secret_}});
  EXPECT_EQ(srun->Wait(kTimeout), 1) << OutputOf(*srun);
  EXPECT_THAT(srun->standard_error(), HasSubstr("--distribution=block"));
}

TEST_F(LaunchedNodesTest, WhatContradictsSlurmIsNamed) {
  const auto srun = Srun({"-N1", "-n2"}, {{"RANK", "7"}});
  EXPECT_EQ(srun->Wait(kTimeout), 1) << OutputOf(*srun);
  EXPECT_THAT(srun->standard_error(),
              AllOf(HasSubstr("RANK is 7"), HasSubstr("SLURM_PROCID is 0")));
}

TEST_F(LaunchedNodesTest, AShellOnEachNode) {
  std::vector<std::unique_ptr<Process>> ranks;
  const int port = FreePort();
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::string> argv = NodeNetwork::Inside(rank + 1);
    argv.push_back(probe_);
    ranks.push_back(cluster_->Run(argv, {{"RANK", absl::StrCat(rank)},
                                         {"WORLD_SIZE", "2"},
                                         {"MASTER_ADDR", "node1"},
                                         {"MASTER_PORT", absl::StrCat(port)},
                                         {"CADRE_SECRET_FILE", secret_}}));
  }
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks[rank]->Wait(kTimeout), 0) << OutputOf(*ranks[rank]);
    EXPECT_THAT(ranks[rank]->standard_output(),
                HasSubstr(absl::StrCat(LaunchedLine(rank, 2, 1), "at=10.77.0.", rank + 1, " ")));
  }
}

TEST_F(LaunchedNodesTest, TorchrunOnTwoNodes) {
  const std::string torchrun = PypiProgram("torchrun");
  if (torchrun.empty()) GTEST_SKIP() << kNoPypiPython;
  for (const bool with_secret : {true, false}) {
    const int port = FreePort();
    std::vector<std::unique_ptr<Process>> nodes;
    for (int node = 0; node < 2; ++node) {
      std::vector<std::string> argv = NodeNetwork::Inside(node + 1);
      argv.insert(argv.end(), {torchrun, "--nnodes", "2", "--node-rank", absl::StrCat(node),
                               "--nproc-per-node", "2", "--master-addr", "node1", "--master-port",
                               absl::StrCat(port), "--no-python", probe_});
      nodes.push_back(
          cluster_->Run(argv, {{"CADRE_SECRET_FILE", with_secret ? secret_ : std::string()}}));
    }
    std::string said;
    for (const auto& node : nodes) {
      EXPECT_EQ(node->Wait(kTimeout), with_secret ? 0 : 1) << OutputOf(*node);
      absl::StrAppend(&said, node->standard_output(), node->standard_error());
    }
    if (!with_secret) {
      EXPECT_THAT(said, HasSubstr("torchrun started several nodes"));
      continue;
    }
    for (int rank = 0; rank < 4; ++rank) EXPECT_THAT(said, HasSubstr(LaunchedLine(rank, 4, 2)));
    EXPECT_THAT(said, AllOf(HasSubstr("at=10.77.0.1 "), HasSubstr("at=10.77.0.2 ")));
  }
}

// As where a machine's own name means loopback on it.
TEST_F(LaunchedNodesTest, AnAddressThatLeadsToRankZeroByOtherMeans) {
  std::vector<std::unique_ptr<Process>> ranks;
  const int port = FreePort();
  const std::string hosts = cluster_->directory() + "/hosts";
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<std::string> argv = NodeNetwork::Inside(rank / 2 + 1);
    const std::string own = rank < 2 ? "127.0.1.1" : "10.77.0.1";
    for (const std::string& word :
         {std::string("unshare"), std::string("-m"), std::string("sh"), std::string("-c"),
          absl::StrCat("echo '127.0.0.1 localhost\n", own, " head' > ", hosts, rank,
                       " && mount --bind ", hosts, rank, " /etc/hosts && exec ", probe_)}) {
      argv.push_back(word);
    }
    ranks.push_back(cluster_->Run(argv, {{"RANK", absl::StrCat(rank)},
                                         {"WORLD_SIZE", "4"},
                                         {"MASTER_ADDR", "head"},
                                         {"MASTER_PORT", absl::StrCat(port)},
                                         {"CADRE_SECRET_FILE", secret_}}));
  }
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(ranks[rank]->Wait(kTimeout), 0) << OutputOf(*ranks[rank]);
    EXPECT_THAT(
        ranks[rank]->standard_output(),
        HasSubstr(absl::StrCat(LaunchedLine(rank, 4, 2), "at=10.77.0.", rank / 2 + 1, " ")));
  }
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) { return cadre::RunTestsAmongThemselves(argc, argv); }
