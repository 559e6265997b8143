// cadre.checkpoint of the Python module under cadre run, with real PyTorch: what was saved in
// memory is there after a kill, and the training ends as one that nobody disturbed.
#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/faults/mortal_server.h"
#include "tests/testing/launch.h"
#include "tests/testing/pypi_python.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Importing torch alone takes many seconds on a machine that has other things to do.
constexpr absl::Duration kTimeout = absl::Minutes(4);
constexpr char kScript[] = "tests/compatibility/memory_checkpoint/replicated_script.py";
// Its model is sharded over the ranks.
constexpr char kShardedScript[] = "tests/compatibility/memory_checkpoint/sharded_script.py";
// It also writes them to a directory.
constexpr char kSpillScript[] = "tests/compatibility/memory_checkpoint/spill_script.py";
// And that is gone.
constexpr char kLostDirectoryScript[] =
    "tests/compatibility/memory_checkpoint/lost_directory_script.py";
constexpr char kSteps[] = "40";
constexpr char kNever[] = "1000";

class MemoryCheckpointScriptTest : public PypiPythonTest {
 protected:
  std::vector<std::string> Command(std::vector<std::string> flags, const std::string& python,
                                   const char* mode, const std::string& die_at,
                                   const std::vector<std::string>& more = {}) const {
    const std::vector<std::string> rest = {
        "--log-dir",
        logs_,
        "--env",
        absl::StrCat("PYTHONPATH=", std::filesystem::canonical("python").string()),
        "--env",
        absl::StrCat("CADRE_LIBRARY=",
                     std::filesystem::canonical("tools/library/libcadre.so.0").string()),
        "--max-restarts",
        "1",
        "--",
        python,
        script_,
        mode,
        kSteps,
        die_at};
    flags.insert(flags.end(), rest.begin(), rest.end());
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
  // What stands behind these words in the output of a run that ended well, up to the line's end.
  static std::string Behind(const std::string& words, const Process& run) {
    const std::string said = run.standard_output();
    const size_t at = said.find(words);
    EXPECT_NE(at, std::string::npos) << OutputOf(run);
    if (at == std::string::npos) return "";
    const size_t begin = at + words.size();
    return said.substr(begin, said.find('\n', begin) - begin);
  }
  static std::string EndOf(const Process& run, int rank = 0) {
    return Behind(absl::StrCat("rank ", rank, " ends with "), run);
  }
  static std::string StepOf(const Process& run, int rank) {
    const std::string step = Behind(absl::StrCat("rank ", rank, " goes on behind step "), run);
    return step.substr(0, step.find(' '));
  }
  // `copies`: when.
  void GoesOnAsIfUndisturbed(const std::string& python, const char* mode, const char* copies) {
    const auto whole = StartStandalone(Command({"--nproc-per-node", "2"}, python, mode, kNever));
    ASSERT_EQ(whole->Wait(kTimeout), 0) << OutputOf(*whole);
    const auto killed = StartStandalone(Command({"--nproc-per-node", "2"}, python, mode, "20"));
    ASSERT_EQ(killed->Wait(kTimeout), 0) << OutputOf(*killed);
    // At most the step that was being copied is lost.
    EXPECT_THAT(killed->standard_output(),
                AllOf(ContainsRegex("rank 0 goes on behind step (19|20) of rank 0"),
                      ContainsRegex("rank 1 goes on behind step (19|20) of rank"),
                      HasSubstr(absl::StrCat("rank 0 copies ", copies))));
    EXPECT_THAT(killed->standard_error(), Not(HasSubstr("RuntimeWarning")));
    EXPECT_EQ(EndOf(*whole), EndOf(*killed));
  }

  // With one worker on each of two nodes; that ended well.
  std::vector<std::unique_ptr<Process>> RunTwoNodes(const char* mode,
                                                    const std::string& die_at) const {
    const int port = FreePort();
    std::vector<std::unique_ptr<Process>> nodes;
    for (int node = 0; node < 2; ++node) {
      nodes.push_back(
          StartNode(port, "2", node,
                    Command({"--nproc-per-node", "1", "--node-rank", absl::StrCat(node)}, python_,
                            mode, die_at)));
    }
    for (const auto& node : nodes) EXPECT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
    return nodes;
  }

  // Rank 1's node with all that it had in memory, at once; a new one takes its place.
  void LosesANode(const char* mode) {
    const std::string undisturbed = EndOf(*RunTwoNodes(mode, kNever)[0]);
    MortalServer server;
    ASSERT_TRUE(server.Start());
    std::vector<std::unique_ptr<Process>> nodes;
    const auto start = [&](int node) {
      nodes.push_back(StartNode(server.port(), "2", node,
                                Command({"--nproc-per-node", "1", "--token-file",
                                         server.token_file(), "--job-name", "job"},
                                        python_, mode, "20", {"node"})));
    };
    start(0);
    start(1);
    // Whichever has rank 1 by then.
    ASSERT_TRUE(nodes[0]->WaitForLine("generation 1 running", kTimeout)) << OutputOf(*nodes[0]);
    start(2);
    std::vector<std::string> ends;
    for (const auto& node : nodes) {
      const auto status = node->Wait(kTimeout);
      if (status == 128 + SIGKILL) continue;
      ASSERT_EQ(status, 0) << OutputOf(*node);
      const bool is_first = absl::StrContains(node->standard_output(), "rank 0 ends");
      const std::string first = StepOf(*node, is_first ? 0 : 1);
      EXPECT_THAT(first, AnyOf("19", "20"));
      EXPECT_THAT(node->standard_output(), HasSubstr(is_first ? " of rank 0" : " of rank 1"));
      ends.push_back(EndOf(*node, is_first ? 0 : 1));
    }
    EXPECT_THAT(ends, ElementsAre(undisturbed, undisturbed));
  }

  // The whole job is killed with all that its node had in memory, and started again.
  void GoesOnFromTheDirectory(const char* mode) {
    script_ = kSpillScript;
    const auto run = [&](const std::string& die_at, const std::string& directory) {
      return StartStandalone(
          Command({"--nproc-per-node", "2"}, python_, mode, die_at, {directory}));
    };
    const auto whole = run(kNever, MakeTempDir("spilled"));
    ASSERT_EQ(whole->Wait(kTimeout), 0) << OutputOf(*whole);
    const std::string directory = MakeTempDir("spilled");
    const auto killed = run("20", directory);
    ASSERT_EQ(killed->Wait(kTimeout), 128 + SIGKILL) << OutputOf(*killed);
    const auto again = run(kNever, directory);
    ASSERT_EQ(again->Wait(kTimeout), 0) << OutputOf(*again);
    int step = -1;
    EXPECT_TRUE(absl::SimpleAtoi(StepOf(*again, 0), &step)) << OutputOf(*again);
    EXPECT_GE(step, 0);
    EXPECT_LE(step, 20);
    EXPECT_EQ(StepOf(*again, 1), StepOf(*again, 0));
    EXPECT_EQ(EndOf(*again, 0), EndOf(*whole, 0));
    EXPECT_EQ(EndOf(*again, 1), EndOf(*whole, 1));
  }

  std::string script_ = kScript;
  const std::string logs_ = MakeTempDir("logs");
};

TEST_F(MemoryCheckpointScriptTest, EachRanksOwn) {
  GoesOnAsIfUndisturbed(python_, "own", "behind");
}

TEST_F(MemoryCheckpointScriptTest, OneForTheNode) {
  GoesOnAsIfUndisturbed(python_, "replicated", "behind");
}

TEST_F(MemoryCheckpointScriptTest, OnTwoNodes) {
  const auto nodes = RunTwoNodes("replicated", "20");
  // Each node takes its own copy, or the other's where that is of a later step: a death in the
  // midst of a copy leaves the one before.
  const std::string first = StepOf(*nodes[0], 0);
  EXPECT_THAT(first, AnyOf("19", "20"));
  EXPECT_EQ(first, StepOf(*nodes[1], 1));
  EXPECT_EQ(EndOf(*nodes[0], 0), EndOf(*nodes[1], 1));
}

TEST_F(MemoryCheckpointScriptTest, ALostNodesStateIsWithItsPartner) { LosesANode("own"); }

TEST_F(MemoryCheckpointScriptTest, ALostNodesShardsAreWithItsPartner) {
  script_ = kShardedScript;
  LosesANode("into");
}

TEST_F(MemoryCheckpointScriptTest, ShardsComeBackAsNewTensors) {
  script_ = kShardedScript;
  const auto whole = StartStandalone(Command({"--nproc-per-node", "2"}, python_, "new", kNever));
  ASSERT_EQ(whole->Wait(kTimeout), 0) << OutputOf(*whole);
  const auto killed = StartStandalone(Command({"--nproc-per-node", "2"}, python_, "new", "20"));
  ASSERT_EQ(killed->Wait(kTimeout), 0) << OutputOf(*killed);
  for (const int rank : {0, 1}) EXPECT_THAT(StepOf(*killed, rank), AnyOf("19", "20"));
  EXPECT_EQ(EndOf(*whole), EndOf(*killed));
}

TEST_F(MemoryCheckpointScriptTest, AKilledJobGoesOnFromTheDirectory) {
  GoesOnFromTheDirectory("own");
}

TEST_F(MemoryCheckpointScriptTest, SoDoesOneWithTheSameStateOnAllRanks) {
  GoesOnFromTheDirectory("replicated");
}

// Fault (checkpoint): The directory for in-memory states can no longer be written to -> It is
// reported once, in Python as a `RuntimeWarning`; training goes on and states stay in memory
TEST_F(MemoryCheckpointScriptTest, ADirectoryThatIsGoneIsAWarningAndTrainingGoesOn) {
  script_ = kLostDirectoryScript;
  for (const char* mode : {"own", "replicated"}) {
    const std::string directory = MakeTempDir("spilled");
    const auto run = StartStandalone(
        Command({"--nproc-per-node", "1"}, "/usr/bin/python3", mode, kNever, {directory}));
    ASSERT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
    EXPECT_THAT(
        run->standard_output(),
        HasSubstr(absl::StrCat("said 1 times: RuntimeWarning: cadre.checkpoint: a state was "
                               "not written to ",
                               directory, ": ")));
  }
}

// It has no hook in front of an optimizer's step: every save waits for its copy.
TEST_F(MemoryCheckpointScriptTest, UnderDebiansTorch) {
  GoesOnAsIfUndisturbed("/usr/bin/python3", "replicated", "at once");
}

}  // namespace
}  // namespace cadre
