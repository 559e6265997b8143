// Ranks under torchrun: Debian's of PyTorch 1.13, and the one of tools/python_env, where
// CADRE_PYTHON_ENV names its folder.
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/compatibility/launched_line.h"
#include "tests/testing/launch.h"
#include "tests/testing/pypi_python.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Minutes(4);

std::unique_ptr<Process> Torchrun(const std::string& program,
                                  const std::vector<std::string>& arguments) {
  return StartProgram(program, arguments, {{"XDG_RUNTIME_DIR", MakeTempDir("run")}});
}

class TorchrunTest : public PypiPythonTest {
 protected:
  std::unique_ptr<Process> Run(std::vector<std::string> arguments,
                               const std::vector<std::string>& probes = {}) {
    arguments.insert(arguments.end(), {"--no-python", kLaunchedProbe});
    arguments.insert(arguments.end(), probes.begin(), probes.end());
    return Torchrun(InEnvironment("torchrun"), arguments);
  }
};

TEST_F(TorchrunTest, RanksMeetThroughItsStore) {
  const auto torchrun = Run({"--standalone", "--nproc-per-node", "2"});
  EXPECT_EQ(torchrun->Wait(kTimeout), 0) << OutputOf(*torchrun);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(torchrun->standard_output(), HasSubstr(LaunchedLine(rank, 2, 2)))
        << OutputOf(*torchrun);
  }
}

// Fault (store): Another launcher restarts ranks after rank 0 died -> The new ranks connect to each
// other, whatever the dead rank left behind
TEST_F(TorchrunTest, WhatItStartsAgainMeetsAnew) {
  const auto torchrun = Run({"--standalone", "--nproc-per-node", "2", "--max-restarts", "1"},
                            {"--first-life", "x", "--kill", "0"});
  EXPECT_EQ(torchrun->Wait(kTimeout), 0) << OutputOf(*torchrun);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(torchrun->standard_output(), HasSubstr(LaunchedLine(rank, 2, 2, 1)))
        << OutputOf(*torchrun);
  }
}

TEST_F(TorchrunTest, TwoNodesOfOneMachine) {
  const int port = FreePort();
  std::vector<std::unique_ptr<Process>> nodes;
  const std::string runtime = MakeTempDir("run");
  for (int node = 0; node < 2; ++node) {
    nodes.push_back(
        StartProgram(InEnvironment("torchrun"),
                     {"--nnodes", "2", "--node-rank", absl::StrCat(node), "--nproc-per-node", "1",
                      "--master-addr", "127.0.0.1", "--master-port", absl::StrCat(port),
                      "--no-python", kLaunchedProbe},
                     {{"XDG_RUNTIME_DIR", runtime}}));
  }
  for (int node = 0; node < 2; ++node) {
    EXPECT_EQ(nodes[node]->Wait(kTimeout), 0) << OutputOf(*nodes[node]);
    EXPECT_THAT(nodes[node]->standard_output(), HasSubstr(LaunchedLine(node, 2, 1)));
  }
}

class DebiansTorchrunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (access("/usr/bin/torchrun", X_OK) != 0) GTEST_SKIP() << "needs Debian's python3-torch";
  }
  std::unique_ptr<Process> Run(std::vector<std::string> arguments) {
    logs_ = MakeTempDir("logs");
    // This version fails without them.
    for (const char* word : {"-r", "1", "-t", "1", "--log_dir"}) arguments.push_back(word);
    arguments.insert(arguments.end(), {logs_, "--no_python", kLaunchedProbe});
    return Torchrun("/usr/bin/torchrun", arguments);
  }
  // What all workers wrote to a file of that name.
  std::string Logged(const std::string& name) {
    std::string all;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(logs_)) {
      if (entry.path().filename() == name) absl::StrAppend(&all, ReadFileOrEmpty(entry.path()));
    }
    return all;
  }
  std::string logs_;
};

TEST_F(DebiansTorchrunTest, RanksMeetAtItsAddress) {
  const auto torchrun = Run({"--standalone", "--nproc_per_node", "2"});
  EXPECT_EQ(torchrun->Wait(kTimeout), 0) << OutputOf(*torchrun);
  const std::string said = absl::StrCat(OutputOf(*torchrun), Logged("stdout.log"));
  for (int rank = 0; rank < 2; ++rank) EXPECT_THAT(said, HasSubstr(LaunchedLine(rank, 2, 2)));
}

// Fault (versions): The store of a torchrun does not speak the protocol of PyTorch 2.1 -> The ranks
// say so within a minute, and what to do
TEST_F(DebiansTorchrunTest, ItsStaticStoreIsOfAnOlderProtocol) {
  const absl::Time start = absl::Now();
  const auto torchrun =
      Run({"--nnodes", "1", "--node_rank", "0", "--nproc_per_node", "2", "--master_addr",
           "127.0.0.1", "--master_port", absl::StrCat(FreePort())});
  EXPECT_NE(torchrun->Wait(kTimeout), 0) << OutputOf(*torchrun);
  EXPECT_LT(absl::Now() - start, absl::Minutes(1));
  const std::string said = absl::StrCat(OutputOf(*torchrun), Logged("stdout.log"));
  EXPECT_THAT(said, AllOf(HasSubstr("does not speak the protocol of PyTorch 2.1 or newer"),
                          HasSubstr("--rdzv-backend c10d")));
}

}  // namespace
}  // namespace cadre
