// torchrun --rdzv-backend=cadre with real torchruns, one per node: what starts them says which node
// is which.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"
#include "tests/testing/pypi_python.h"
#include "tests/testing/unpacked_wheel.h"

namespace cadre {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Importing torch takes many seconds on a machine that has other things to do, in each process.
constexpr absl::Duration kTimeout = absl::Minutes(4);
constexpr char kScript[] = "tests/compatibility/backend/torchrun_script.py";

class TorchrunRendezvousTest : public PypiPythonTest {
 protected:
  using Words = std::vector<std::string>;
  using Nodes = std::vector<std::unique_ptr<Process>>;

  Words Torchrun(const std::string& nnodes, const Words& flags, const Words& script) const {
    Words words = {InEnvironment("torchrun"), "--rdzv-backend=cadre", "--nnodes=" + nnodes,
                   "--nproc-per-node=2"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.push_back(kScript);
    words.insert(words.end(), script.begin(), script.end());
    return words;
  }

  // As one worker of each of two nodes of `cadre run`.
  Nodes UnderCadre(const Words& torchrun, const Words& flags = {}) const {
    const int port = FreePort();
    Nodes nodes;
    for (int node = 0; node < 2; ++node) {
      Words words = {"--node-rank", absl::StrCat(node),
                     "--log-dir",   logs_,
                     "--env",       absl::StrCat("PYTHONPATH=", wheel_)};
      words.insert(words.end(), flags.begin(), flags.end());
      words.push_back("--");
      words.insert(words.end(), torchrun.begin(), torchrun.end());
      nodes.push_back(StartNode(port, "2", node, words));
    }
    return nodes;
  }

  // As a shell would, by the plain variables.
  Nodes ByVariables(const Words& torchrun, const Words& other_torchrun) const {
    const int port = FreePort();
    Nodes nodes;
    for (int node = 0; node < 2; ++node) {
      const Words& words = node == 0 ? torchrun : other_torchrun;
      nodes.push_back(StartProgram(words[0], Words(words.begin() + 1, words.end()),
                                   {{"PYTHONPATH", wheel_},
                                    {"XDG_RUNTIME_DIR", run_},
                                    {"RANK", absl::StrCat(node)},
                                    {"WORLD_SIZE", "2"},
                                    {"MASTER_ADDR", "127.0.0.1"},
                                    {"MASTER_PORT", absl::StrCat(port)}}));
    }
    return nodes;
  }

  static void ExpectAllRanks(const Nodes& nodes, const std::string& life) {
    for (const auto& node : nodes) ASSERT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_THAT(nodes[rank / 2]->standard_output(),
                  ContainsRegex(absl::StrCat("rank ", rank, " of 4 on node ", rank / 2,
                                             ": sum 10, life ", life, ", agent None")))
          << OutputOf(*nodes[rank / 2]);
    }
  }

  const std::string logs_ = MakeTempDir("logs");
  const std::string run_ = MakeTempDir("run");  // where the ranks find the user's secret
  const std::string wheel_ = UnpackedWheel();
};

TEST_F(TorchrunRendezvousTest, TwoNodesOfCadre_NeedNoEndpoint) {
  ExpectAllRanks(UnderCadre(Torchrun("2", {}, {"gloo"})), "0");
}

// The programs are torchrun's: the backend must not take them for workers of the agent.
TEST_F(TorchrunRendezvousTest, TheBackendWorksBeneathIt) {
  ExpectAllRanks(UnderCadre(Torchrun("1:4", {}, {"cadre"})), "0");
}

// Fault (store): A worker of a torchrun with `--rdzv-backend cadre` fails on one node -> torchrun
// restarts the workers on all nodes
TEST_F(TorchrunRendezvousTest, WorkersThatFailOnOneNode_AreStartedAgainOnAll) {
  ExpectAllRanks(
      UnderCadre(Torchrun("2", {"--max-restarts=1"}, {"gloo", "exit", logs_ + "/first"})), "[01]");
}

// Fault (store): A torchrun with `--rdzv-backend cadre`, started by Cadre, is killed -> Cadre
// restarts all of them
TEST_F(TorchrunRendezvousTest, AKilledTorchrun_CadreStartsAllAgain) {
  ExpectAllRanks(
      UnderCadre(Torchrun("2", {}, {"gloo", "kill", logs_ + "/first"}), {"--max-restarts", "1"}),
      "0");
}

TEST_F(TorchrunRendezvousTest, NodesByPlainVariables) {
  const Words torchrun = Torchrun("2", {"--max-restarts=1"}, {"gloo", "exit", logs_ + "/first"});
  ExpectAllRanks(ByVariables(torchrun, torchrun), "[01]");
}

// Fault (store): A torchrun with `--rdzv-backend cadre` that Cadre did not start ends -> The
// others' next rendezvous round says which one has ended and does not wait for it
TEST_F(TorchrunRendezvousTest, ANodeThatIsLeftAlone_DoesNotWaitForTheOther) {
  const Words script = {"gloo", "all_exit"};
  const Nodes nodes = ByVariables(Torchrun("2", {"--max-restarts=1"}, script),
                                  Torchrun("2", {"--max-restarts=0"}, script));
  for (const auto& node : nodes) EXPECT_EQ(node->Wait(kTimeout), 1) << OutputOf(*node);
  EXPECT_THAT(OutputOf(*nodes[0]), HasSubstr("cadre: torchrun of rank 1 has ended"));
}

TEST_F(TorchrunRendezvousTest, AnotherNumberOfNodesIsRefused) {
  const auto node =
      StartStandalone({"--env", "PYTHONPATH=" + wheel_, "--", InEnvironment("torchrun"),
                       "--rdzv-backend=cadre", "--nnodes=2", kScript, "gloo"});
  EXPECT_NE(node->Wait(kTimeout), 0);
  EXPECT_THAT(
      OutputOf(*node),
      HasSubstr("torchrun was given --nnodes 2:2, but the job that starts it has 1 worker"));
}

}  // namespace
}  // namespace cadre
