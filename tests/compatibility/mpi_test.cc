// mpirun with a host file, on nodes that are network namespaces. Needs root; skipped without.
#include <filesystem>
#include <fstream>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/documented_commands.h"
#include "tests/testing/launch.h"
#include "tests/testing/node_network.h"
#include "tests/testing/node_shell.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Minutes(4);
// MPICH's mpirun, by its own name: Debian's mpirun is Open MPI's.
constexpr char kHydra[] = "/usr/bin/mpiexec.hydra";
constexpr char kSayWho[] = "echo I am $RANK of $WORLD_SIZE on $GROUP_RANK";

class MpiTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    cadre_ = std::filesystem::absolute(kCadre);
    documentation_ = std::filesystem::absolute("docs/from_mpirun.md");
    mnist_ = std::filesystem::absolute("examples/mnist_cnn/mnist_cnn");
    plain_ = std::filesystem::absolute("examples/plain_cpp/plain_cpp");
    probe_ = std::filesystem::absolute("tests/end_to_end/runtime_probe");
    entered_ = new absl::Status(NodeNetwork::EnterWith(3));
    if (entered_->ok()) *entered_ = NodeNetwork::NameNodes({"node1", "node2", "node3"});
  }
  void SetUp() override {
    if (absl::IsPermissionDenied(*entered_)) GTEST_SKIP() << entered_->message();
    if (access("/usr/bin/mpirun", X_OK) != 0) GTEST_SKIP() << "needs Debian's openmpi-bin";
    ASSERT_OK(*entered_);
    home_ = MakeTempDir("home");
    std::ofstream(home_ + "/hosts") << "node1 slots=2\nnode2 slots=2\n";
  }

  // On node 1, as a user there would.
  std::unique_ptr<Process> Mpirun(const std::string& arguments) {
    const std::string shell = MakeNodeShell();
    return OnNode1(shell, absl::StrCat("mpirun --allow-run-as-root --mca plm_rsh_agent ", shell,
                                       " --hostfile hosts -x HOME -x XDG_CACHE_HOME ", arguments));
  }
  std::unique_ptr<Process> Hydra(const std::string& arguments) {
    const std::string shell = MakeNodeShell();
    return OnNode1(shell,
                   absl::StrCat(kHydra, " -launcher ssh -launcher-exec ", shell, " ", arguments));
  }
  std::unique_ptr<Process> OnNode1(const std::string& shell, const std::string& command) {
    ProcessOptions options;
    options.argv = {shell, "node1", absl::StrCat("exec ", command)};
    options.env = {{"HOME", home_}, {"XDG_CACHE_HOME", MakeTempDir("cache")}};
    options.working_dir = home_;
    auto process = Process::Start(options);
    EXPECT_OK(process);
    return process.ok() ? *std::move(process) : nullptr;
  }

  static std::string cadre_, mnist_, plain_, probe_, documentation_;
  static absl::Status* entered_;
  std::string home_;
};
std::string MpiTest::cadre_, MpiTest::mnist_, MpiTest::plain_, MpiTest::probe_,
    MpiTest::documentation_;
absl::Status* MpiTest::entered_;

TEST_F(MpiTest, ProcessPerWorker_TrainsTheMnistExample) {
  const auto mpirun = Mpirun(
      absl::StrCat("-n 4 ", cadre_, " run ", mnist_, " --epochs 1 --limit 512 --batch-size 32"));
  EXPECT_EQ(mpirun->Wait(kTimeout), 0) << OutputOf(*mpirun);
  EXPECT_THAT(mpirun->standard_output(), HasSubstr("parameters equal on 4 ranks"))
      << OutputOf(*mpirun);
}

// SINGA's DistOpt: sparse gradients with what was left out added to the next ones.
TEST_F(MpiTest, ProcessPerNode_TrainsTheSingaWay) {
  const auto mpirun = Mpirun(absl::StrCat(
      "-n 2 --map-by ppr:1:node ", cadre_, " run ", mnist_,
      " --epochs 1 --limit 512 --sync topk --lr 0.005 --momentum 0.9 --weight-decay 1e-5"));
  EXPECT_EQ(mpirun->Wait(kTimeout), 0) << OutputOf(*mpirun);
  EXPECT_THAT(mpirun->standard_output(), HasSubstr("test accuracy")) << OutputOf(*mpirun);
}

TEST_F(MpiTest, FailedProgram_GivesItsStatus) {
  const auto mpirun = Mpirun(absl::StrCat("-n 4 ", cadre_, " run sh -c 'exit 7'"));
  EXPECT_EQ(mpirun->Wait(kTimeout), 7) << OutputOf(*mpirun);
}

TEST_F(MpiTest, NoLauncher_OneNodeTrainsTheMnistExample) {
  const auto mpirun =
      Mpirun(absl::StrCat("-n 2 ", mnist_, " --epochs 1 --limit 512 --batch-size 32"));
  EXPECT_EQ(mpirun->Wait(kTimeout), 0) << OutputOf(*mpirun);
  EXPECT_THAT(mpirun->standard_output(), HasSubstr("parameters equal on 2 ranks"))
      << OutputOf(*mpirun);
}

TEST_F(MpiTest, NoLauncher_TwoNodesUseAllOfTheRuntime) {
  const auto mpirun = Mpirun(absl::StrCat("-n 4 ", probe_));
  EXPECT_EQ(mpirun->Wait(kTimeout), 0) << OutputOf(*mpirun);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(mpirun->standard_output(), HasSubstr(absl::StrCat("runtime ok rank=", rank, " ")))
        << OutputOf(*mpirun);
  }
  EXPECT_TRUE(std::filesystem::is_empty(home_ + "/.cadre"));
}

// mpirun sees it and ends the others, which wait for it.
TEST_F(MpiTest, NoLauncher_ARankThatDiesHangsNobody) {
  const auto mpirun = Mpirun(absl::StrCat(
      "-n 4 ", mnist_, " --epochs 3 --limit 512 --batch-size 32 --fail-rank 1 --fail-epoch 2",
      " --checkpoint-dir ", home_, "/checkpoints"));
  // 137, or 1 where mpirun is told first of another one that has seen it and gives up.
  EXPECT_GT(mpirun->Wait(kTimeout).value_or(0), 0) << OutputOf(*mpirun);
  EXPECT_THAT(mpirun->standard_output(), HasSubstr("rank 1 kills itself in epoch 2"));
}

TEST_F(MpiTest, NoLauncher_RanksSpreadOverTheNodesAreRefused) {
  const auto mpirun = Mpirun(absl::StrCat("-n 4 --map-by node ", plain_));
  EXPECT_EQ(mpirun->Wait(kTimeout), 1) << OutputOf(*mpirun);
  EXPECT_THAT(mpirun->standard_error(), HasSubstr("--map-by slot")) << OutputOf(*mpirun);
}

// 5 ranks, 2 and 3: no node can tell by its own variables that there is another one.
//
// Fault (node): `mpirun` starts launchers on nodes of different sizes, and no variable says how
// many nodes there are -> The nodes count together and form one job
TEST_F(MpiTest, Hydra_NodesOfDifferentSizesAreOneJob) {
  if (access(kHydra, X_OK) != 0) GTEST_SKIP() << "needs Debian's mpich";
  const auto hydra =
      Hydra(absl::StrCat("-hosts node1:2,node2:3 -np 5 ", cadre_, " run sh -c '", kSayWho, "'"));
  EXPECT_EQ(hydra->Wait(kTimeout), 0) << OutputOf(*hydra);
  for (const char* who : {"I am 0 of 5 on 0", "I am 1 of 5 on 0", "I am 2 of 5 on 1",
                          "I am 3 of 5 on 1", "I am 4 of 5 on 1"}) {
    EXPECT_THAT(hydra->standard_output(), HasSubstr(who)) << OutputOf(*hydra);
  }
  // What the nodes told each other is gone, but for how the launch ended, and for whom.
  for (const auto& left : std::filesystem::directory_iterator(home_ + "/.cadre")) {
    EXPECT_THAT(
        left.path().filename(),
        testing::AnyOf(testing::EndsWith(".ended"), testing::EndsWith(".ran"), "log_directories"));
  }
}

TEST_F(MpiTest, Hydra_RanksThatAreSpreadAreOneJobToo) {
  if (access(kHydra, X_OK) != 0) GTEST_SKIP() << "needs Debian's mpich";
  const auto hydra =
      Hydra(absl::StrCat("-hosts node1,node2 -ppn 1 -np 3 ", cadre_, " run sh -c '", kSayWho, "'"));
  EXPECT_EQ(hydra->Wait(kTimeout), 0) << OutputOf(*hydra);
  EXPECT_THAT(hydra->standard_output(),
              AllOf(HasSubstr("I am 0 of 3"), HasSubstr("I am 1 of 3"), HasSubstr("I am 2 of 3")))
      << OutputOf(*hydra);
}

// Nothing of this launch runs where mpirun does, so somebody else has to serve.
//
// Fault (node): The node that is to serve the job is not where `mpirun` runs -> The job runs all
// the same
TEST_F(MpiTest, MpirunsOwnNodeNeedNotTakePart) {
  for (const auto& [hosts, ranks, last] :
       {std::tuple{"node2 slots=2\n", 2, "I am 1 of 2 on 0"},
        std::tuple{"node2 slots=2\nnode3 slots=1\n", 3, "I am 2 of 3 on 1"}}) {
    std::ofstream(home_ + "/hosts") << hosts;
    const auto mpirun =
        Mpirun(absl::StrCat("-n ", ranks, " ", cadre_, " run sh -c '", kSayWho, "'"));
    EXPECT_EQ(mpirun->Wait(kTimeout), 0) << OutputOf(*mpirun);
    EXPECT_THAT(mpirun->standard_output(), HasSubstr(last)) << OutputOf(*mpirun);
  }
}

TEST_F(MpiTest, AProgramOfMpi_IsToldThatItIsAlone) {
  std::ofstream(home_ + "/ranks.py") << "try:\n  from mpi4py import MPI\nexcept ImportError: 0\n";
  const auto mpirun = Mpirun(absl::StrCat("-n 4 ", cadre_, " run ranks.py"));
  EXPECT_EQ(mpirun->Wait(kTimeout), 0) << OutputOf(*mpirun);
  EXPECT_THAT(mpirun->standard_error(), HasSubstr("imports mpi4py, which makes each worker rank 0"))
      << OutputOf(*mpirun);
}

// Every command of docs/from_mpirun.md.
TEST_F(MpiTest, DocumentedCommands_Train) {
  WriteDocumentedFiles(home_);
  std::filesystem::create_symlink(plain_, home_ + "/train");
  const std::string shell = MakeNodeShell();
  for (const std::string& command : DocumentedCommands(documentation_)) {
    ProcessOptions options;
    options.argv = {shell, "node1", command};
    options.env = {{"HOME", home_},
                   {"PATH", PathWith(cadre_)},
                   {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                   {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                   {"OMPI_MCA_plm_rsh_agent", shell},
                   {"CADRE_SSH_COMMAND", shell}};
    options.working_dir = home_;
    const auto process = RunToEnd(options);
    ASSERT_OK(process);
    EXPECT_EQ((*process)->Wait(), 0) << command << "\n" << OutputOf(**process);
    const bool plain = absl::EndsWith(command, " ./train");
    for (const char* rank : {"0 of 4", "3 of 4"}) {
      EXPECT_THAT((*process)->standard_output(),
                  HasSubstr(absl::StrCat(plain ? "rank " : "trained ", rank)))
          << command;
    }
  }
}

}  // namespace
}  // namespace cadre
