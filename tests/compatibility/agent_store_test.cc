// PyTorch's own clients of the store that the agent of rank 0's node serves: the PyTorch of
// tools/python_env, where CADRE_PYTHON_ENV names its folder, and Debian's, which is older.
#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"
#include "tests/testing/pypi_python.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Importing torch alone takes many seconds on a machine that has other things to do.
constexpr absl::Duration kTimeout = absl::Minutes(4);
constexpr char kOperations[] = "tests/compatibility/agent_store_operations.py";
constexpr char kScript[] = "tests/compatibility/agent_store_script.py";
constexpr char kDdp[] = "tests/compatibility/ddp_script.py";

class AgentStoreTest : public PypiPythonTest {
 protected:
  std::vector<std::string> Command(std::vector<std::string> flags,
                                   const std::vector<std::string>& program) {
    for (const char* word : {"--log-dir", logs_.c_str(), "--", python_.c_str()}) {
      flags.emplace_back(word);
    }
    flags.insert(flags.end(), program.begin(), program.end());
    return flags;
  }
  std::unique_ptr<Process> Run(const std::vector<std::string>& flags,
                               const std::vector<std::string>& program) {
    return StartStandalone(Command(flags, program));
  }
  std::vector<std::unique_ptr<Process>> RunTwoNodes(const std::vector<std::string>& flags,
                                                    const std::vector<std::string>& program) {
    const int port = FreePort();
    std::vector<std::unique_ptr<Process>> nodes;
    for (int node = 0; node < 2; ++node) {
      std::vector<std::string> own = flags;
      own.insert(own.end(), {"--node-rank", absl::StrCat(node)});
      nodes.push_back(StartNode(port, "2", node, Command(own, program)));
    }
    return nodes;
  }
  static std::string Sum(int rank, int world, const char* uses) {
    return absl::StrCat("rank ", rank, " of ", world, ": sum ", world, ", agent store ", uses);
  }

  const std::string logs_ = MakeTempDir("logs");
};

TEST_F(AgentStoreTest, EveryOperation) {
  const auto run = Run({"--nproc-per-node", "2"}, {kOperations});
  EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(run->standard_output(),
                HasSubstr(absl::StrCat("rank ", rank, ": every operation is as it should be")));
  }
  // What does not speak the protocol is said, once.
  EXPECT_THAT(run->standard_error(), HasSubstr("closed the connection from 127.0.0.1"));
}

// Fault (store): A DDP script restarts after rank 0 was killed in `init_process_group` -> The next
// generation uses store keys of its own, and the script completes
TEST_F(AgentStoreTest, ADdpScriptGoesOnAfterRankZeroWasKilled) {
  const std::string checkpoint = MakeTempDir("ddp") + "/checkpoint.pt";
  const auto run =
      Run({"--nproc-per-node", "2", "--max-restarts", "1", "--env", "DDP_SCRIPT_FAIL_RANK=0"},
          {kDdp, checkpoint});
  EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(),
              AllOf(HasSubstr("resumed from epoch 0"), HasSubstr("parameters equal on 2 ranks")));
}

TEST_F(AgentStoreTest, ADdpScriptOnTwoNodes) {
  const std::string checkpoint = MakeTempDir("ddp") + "/checkpoint.pt";
  const auto nodes = RunTwoNodes(
      {"--nproc-per-node", "1", "--max-restarts", "1", "--env", "DDP_SCRIPT_FAIL_RANK=1"},
      {kDdp, checkpoint});
  for (const auto& node : nodes) EXPECT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
  EXPECT_THAT(nodes[0]->standard_output(),
              AllOf(HasSubstr("resumed from epoch 0"), HasSubstr("parameters equal on 2 ranks")));
}

TEST_F(AgentStoreTest, RankZeroIsKilledInTheBarrier_TheOthersHearOfItAtOnce) {
  const auto run = Run({"--nproc-per-node", "3"}, {kScript, "dies"});
  ASSERT_TRUE(run->WaitForLine("dies", kTimeout).has_value()) << OutputOf(*run);
  const absl::Time killed = absl::Now();
  EXPECT_EQ(run->Wait(kTimeout), 128 + SIGKILL) << OutputOf(*run);
  EXPECT_LT(absl::Now() - killed, absl::Seconds(10));
}

// Fault (store): Rank 0 is killed while the others wait in `init_process_group` -> The agent serves
// PyTorch's store, so the others are stopped at once: the job is over within 10 s
TEST_F(AgentStoreTest, RankZeroIsKilledInTheBarrierOfTwoNodes) {
  const auto nodes = RunTwoNodes({"--nproc-per-node", "2"}, {kScript, "dies"});
  ASSERT_TRUE(nodes[0]->WaitForLine("dies", kTimeout).has_value()) << OutputOf(*nodes[0]);
  const absl::Time killed = absl::Now();
  for (const auto& node : nodes) {
    EXPECT_EQ(node->Wait(kTimeout), 128 + SIGKILL) << OutputOf(*node);
  }
  EXPECT_LT(absl::Now() - killed, absl::Seconds(10));
}

// A handler in Python runs when the call in C++ returns, which waits for the store.
//
// Fault (store): Rank 0 is killed while ranks that handle SIGTERM wait in `init_process_group`,
// with a grace of two minutes -> Their wait ends with an error, and the job is over within a minute
TEST_F(AgentStoreTest, WhoHandlesSigtermInTheBarrierIsToldThatItWaitsInVain) {
  const auto run = Run({"--nproc-per-node", "3", "--stop-grace", "2m"}, {kScript, "handles"});
  ASSERT_TRUE(run->WaitForLine("dies", kTimeout).has_value()) << OutputOf(*run);
  const absl::Time killed = absl::Now();
  EXPECT_EQ(run->Wait(kTimeout), 128 + SIGKILL) << OutputOf(*run);
  EXPECT_LT(absl::Now() - killed, absl::Minutes(1));
  for (int rank = 1; rank < 3; ++rank) {
    EXPECT_THAT(run->standard_output(),
                AllOf(HasSubstr(absl::StrCat("rank ", rank, " handles SIGTERM")),
                      HasSubstr(absl::StrCat("rank ", rank, " is told"))));
  }
}

TEST_F(AgentStoreTest, AnAddressOfTheProgramsOwn) {
  const auto run = Run({"--nproc-per-node", "2"}, {kScript, "address"});
  EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(run->standard_output(), HasSubstr(Sum(rank, 2, "True")));
  }
}

TEST_F(AgentStoreTest, StoresOfTheProgramsOwn) {
  const auto run = Run({"--nproc-per-node", "2"}, {kScript, "own"});
  EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(run->standard_output(), HasSubstr(Sum(rank, 2, "True")));
  }
}

TEST_F(AgentStoreTest, AScriptForSrun) {
  const auto run =
      Run({"--nproc-per-node", "2", "--env-style", "slurm", "--env",
           absl::StrCat("SLURM_JOB_ID=", FreePort() - 20000)},
          {"tests/compatibility/slurm_script.py", MakeTempDir("slurm") + "/c.pt", "1"});
  EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("epoch 0 loss"));
}

TEST_F(AgentStoreTest, SwitchedOff) {
  const auto run = Run({"--nproc-per-node", "2", "--no-agent-store"}, {kScript, "plain"});
  EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr(Sum(0, 2, "False")));
}

TEST_F(AgentStoreTest, WithAdoptionRankZeroServes) {
  const auto run =
      Run({"--nproc-per-node", "2", "--adopt-timeout", "30s", "--state-dir", MakeTempDir("state")},
          {kScript, "plain"});
  EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr(Sum(0, 2, "False")));
}

TEST(DebiansTorchTest, IsTooOldForIt) {
  if (!std::filesystem::exists("/usr/lib/python3/dist-packages/torch/version.py")) {
    GTEST_SKIP() << "needs Debian's python3-torch";
  }
  const auto run = StartStandalone({"--nproc-per-node", "2", "--log-dir", MakeTempDir("logs"), "--",
                                    "/usr/bin/python3", kScript, "plain"});
  EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("rank 0 of 2: sum 2, agent store False"));
}

}  // namespace
}  // namespace cadre
