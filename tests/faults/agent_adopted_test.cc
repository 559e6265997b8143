// A launcher that asked for adoption is killed, and started again or not.
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "tests/faults/mortal_server.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kSteadyWorker[] = "tests/faults/steady_worker";
constexpr absl::Duration kTimeout = absl::Seconds(60);

class AgentAdoptedTest : public testing::Test {
 protected:
  // Two nodes of two workers each; node 1 is the one whose launcher is killed.
  void StartJob(const std::string& adopt_timeout) {
    adopt_timeout_ = adopt_timeout;
    ASSERT_TRUE(server_.Start());
    for (const int node : {0, 1}) {
      nodes_.push_back(StartNode(node));
      ASSERT_NE(nodes_.back(), nullptr);
    }
    for (const auto& node : nodes_) Meet(*node, 2);
  }
  std::unique_ptr<Process> StartNode(int node, const std::string& nnodes = "2",
                                     const std::string& program = kSteadyWorker) {
    return server_.StartNode(node, nnodes,
                             {"--adopt-timeout", adopt_timeout_, "--stop-grace", "1s", "--log-dir",
                              directory_ + "/logs", program, directory_});
  }
  // Its workers have begun, and take their steps.
  void Meet(Process& launcher, size_t workers) {
    for (const ProbeLine& probe : NextProbes(launcher, workers, kTimeout)) {
      EXPECT_EQ(probe.generation, 1);
      pids_[probe.rank] = probe.pid;
    }
    ASSERT_TRUE(launcher.WaitForLine("step 5", kTimeout).has_value()) << OutputOf(launcher);
  }
  static void Kill(Process& launcher) {
    launcher.Kill(SIGKILL);
    EXPECT_EQ(launcher.Wait(), 128 + SIGKILL) << OutputOf(launcher);
  }
  std::string Log(int rank) const {
    return ReadFileOrEmpty(
        absl::StrCat(directory_, "/logs/", job_, "/generation_1/rank_", rank, "/stdout.log"));
  }
  // The rank goes on writing.
  void ExpectBeats(int rank) {
    const size_t before = Log(rank).size();
    EXPECT_TRUE(Eventually([&] { return Log(rank).size() > before + 20; })) << "rank " << rank;
  }
  void ExpectAlive() {
    for (const auto& [rank, pid] : pids_) EXPECT_TRUE(IsAlive(pid)) << "rank " << rank;
  }
  // Whole lines, each step and each beat once and in order, in the one generation there was.
  void ExpectWholeLogs() {
    for (const auto& [rank, pid] : pids_) {
      std::map<std::string, int> next = {{"beat", 0}, {"step", 1}};
      const std::string log = Log(rank);
      EXPECT_EQ(absl::StrContains(log, "error"), false) << log;
      for (const absl::string_view line : absl::StrSplit(log, '\n', absl::SkipEmpty())) {
        const std::vector<std::string> words = absl::StrSplit(line, ' ');
        if (next.count(words[0]) == 0) continue;
        ASSERT_THAT(words, SizeIs(2)) << line;
        ASSERT_EQ(words[1], absl::StrCat(next[words[0]]++)) << "rank " << rank << ": " << line;
      }
      EXPECT_GT(next["beat"], 10);
    }
    EXPECT_FALSE(std::filesystem::exists(directory_ + "/logs/" + job_ + "/generation_2"));
  }
  void Touch(const std::string& name) { std::ofstream(directory_ + "/" + name) << "\n"; }

  MortalServer server_;
  const std::string directory_ = MakeTempDir("adopted");
  std::string job_ = "job";
  std::string adopt_timeout_;
  std::vector<std::unique_ptr<Process>> nodes_;
  std::map<int, pid_t> pids_;  // by rank
};

// Fault (node): A launcher is killed, with `--adopt-timeout`, and started again in time -> It takes
// over its workers: the same processes and generation, store calls and barriers go on, and log
// files are complete
TEST_F(AgentAdoptedTest, KilledAloneAndStartedAgain_WorkersGoOn) {
  StartJob("60s");
  ASSERT_THAT(pids_, SizeIs(4));
  for (int times = 0; times < 2; ++times) {
    Kill(*nodes_[1]);
    ExpectBeats(2);
    ExpectBeats(3);
    nodes_[1] = StartNode(1);
    const auto said = nodes_[1]->WaitForLine("took over 2 workers of generation 1", kTimeout);
    ASSERT_TRUE(said.has_value()) << OutputOf(*nodes_[1]);
    EXPECT_TRUE(nodes_[1]->WaitForLine("step ", kTimeout).has_value()) << OutputOf(*nodes_[1]);
    ExpectAlive();
  }
  Touch("done");
  for (const auto& node : nodes_) EXPECT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
  ExpectWholeLogs();
}

// Fault (node): A launcher with `--adopt-timeout` is killed, and one with another command is
// started and refused by the server -> It leaves the workers as they are, and the right launcher
// takes them over
TEST_F(AgentAdoptedTest, StartedByMistakeAndRefused_WorkersWaitForTheRightOne) {
  StartJob("60s");
  Kill(*nodes_[1]);
  // Another program, and another size.
  for (const auto& [nnodes, program] :
       {std::pair<std::string, std::string>("2", "/bin/true"), {"3", kSteadyWorker}}) {
    const auto mistake = StartNode(1, nnodes, program);
    EXPECT_NE(mistake->Wait(kTimeout), 0) << OutputOf(*mistake);
    EXPECT_THAT(mistake->standard_error(), HasSubstr("refuses this node"));
    ExpectAlive();
    ExpectBeats(2);
    ExpectBeats(3);
  }
  nodes_[1] = StartNode(1);
  ASSERT_TRUE(nodes_[1]->WaitForLine("took over 2 workers", kTimeout)) << OutputOf(*nodes_[1]);
  EXPECT_TRUE(nodes_[1]->WaitForLine("step ", kTimeout).has_value()) << OutputOf(*nodes_[1]);
  ExpectAlive();
  Touch("done");
  for (const auto& node : nodes_) EXPECT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
  ExpectWholeLogs();
}

// Fault (node): A launcher is killed, with `--adopt-timeout`, and not started again -> When the
// time is over its supervisor kills every worker, and the node is lost
TEST_F(AgentAdoptedTest, NotStartedAgain_WorkersEnd) {
  StartJob("1s");
  Kill(*nodes_[1]);
  EXPECT_TRUE(WaitGone(pids_[2], kTimeout));
  EXPECT_TRUE(WaitGone(pids_[3], kTimeout));
  EXPECT_EQ(nodes_[0]->Wait(kTimeout), 75) << OutputOf(*nodes_[0]);
  EXPECT_THAT(nodes_[0]->standard_error(),
              HasSubstr("no new launcher took over its workers within 1s"));
}

// Fault (node): A worker dies between a launcher's death and its restart, with `--adopt-timeout` ->
// The new launcher reports its real exit code or signal
TEST_F(AgentAdoptedTest, AWorkerThatDiedMeanwhile_IsReportedAsItEnded) {
  StartJob("60s");
  Kill(*nodes_[1]);
  Touch("die.3");
  EXPECT_TRUE(WaitGone(pids_[3], kTimeout));
  nodes_[1] = StartNode(1);
  for (const auto& node : nodes_) {
    EXPECT_EQ(node->Wait(kTimeout), 7) << OutputOf(*node);
    EXPECT_THAT(node->standard_error(), HasSubstr("rank 3 (local rank 1) on node1"));
    EXPECT_THAT(node->standard_error(), HasSubstr("told to die"));
  }
}

TEST_F(AgentAdoptedTest, CtrlCAfterwards_StopsThem) {
  StartJob("60s");
  Kill(*nodes_[1]);
  nodes_[1] = StartNode(1);
  ASSERT_TRUE(nodes_[1]->WaitForLine("step ", kTimeout).has_value()) << OutputOf(*nodes_[1]);
  nodes_[1]->Kill(SIGINT);
  for (const auto& node : nodes_) EXPECT_EQ(node->Wait(kTimeout), 130) << OutputOf(*node);
  for (const auto& [rank, pid] : pids_) EXPECT_TRUE(WaitGone(pid, absl::Seconds(1)));
}

// The server is in the launcher that is killed; its state is on disk.
//
// Fault (node): The launcher that runs the server is killed, with `--adopt-timeout` and a state
// directory, and started again in time -> Server and workers go on in the same generation
TEST_F(AgentAdoptedTest, TheLauncherThatServes) {
  const int port = FreePort();
  const auto start = [&](int node) {
    return cadre::StartNode(
        port, "2", node,
        {"--nproc-per-node", "2", "--job-name", "job", "--adopt-timeout", "60s", "--state-dir",
         directory_ + "/state", "--log-dir", directory_ + "/logs", kSteadyWorker, directory_});
  };
  nodes_.push_back(start(0));
  ASSERT_TRUE(nodes_[0]->WaitForLine("serving the rendezvous", kTimeout).has_value())
      << OutputOf(*nodes_[0]);
  nodes_.push_back(start(1));
  for (const auto& node : nodes_) Meet(*node, 2);
  Kill(*nodes_[0]);
  for (const auto& [rank, pid] : pids_) ExpectBeats(rank);
  nodes_[0] = start(0);
  for (const auto& node : nodes_) {
    EXPECT_TRUE(node->WaitForLine("step ", kTimeout).has_value()) << OutputOf(*node);
  }
  ExpectAlive();
  Touch("done");
  for (const auto& node : nodes_) EXPECT_EQ(node->Wait(kTimeout), 0) << OutputOf(*node);
  ExpectWholeLogs();
}

TEST_F(AgentAdoptedTest, Standalone) {
  job_ = "alone";
  const auto start = [&] {
    return StartStandalone({"--nproc-per-node", "2", "--job-name", job_, "--adopt-timeout", "60s",
                            "--state-dir", directory_ + "/state", "--log-dir", directory_ + "/logs",
                            kSteadyWorker, directory_});
  };
  auto run = start();
  Meet(*run, 2);
  Kill(*run);
  for (const int rank : {0, 1}) ExpectBeats(rank);
  run = start();
  EXPECT_TRUE(run->WaitForLine("step ", kTimeout).has_value()) << OutputOf(*run);
  ExpectAlive();
  Touch("done");
  EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  ExpectWholeLogs();
}

}  // namespace
}  // namespace cadre
