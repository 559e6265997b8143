// Recovery in place: the MNIST example loses workers and nodes, and those that are left go on in
// their processes. The ledgers that the workers write say who did what.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "tests/end_to_end/training_ledger.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Fault (in place): A worker is killed, with `--in-place` -> The other workers keep their processes
// and repeat at most one step; only the missing worker is started
TEST(InPlaceTest, OneOfFourWorkersIsKilled_TheOthersGoOn) {
  constexpr int kEpochs = 2;
  const std::string ledgers = MakeTempDir("ledgers");
  const std::string logs = MakeTempDir("logs");
  auto run = StartStandalone(Training({"--nproc-per-node", "4", "--timeline", "--standby", "no",
                                       "--log-dir", logs, "--job-name", "j"},
                                      ledgers, kEpochs));
  ASSERT_TRUE(AwaitLedger(ledgers, [](const auto& entries) {
    return DoneSteps(entries, 1, 4) >= 10 && Pids(entries, 1).size() == 4;
  })) << OutputOf(*run);
  const std::map<int, pid_t> before = Pids(ReadLedgers(ledgers), 1);
  const MonoTime killed = MonoNow();
  ASSERT_EQ(kill(before.at(2), SIGKILL), 0);
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);

  const std::vector<Entry> entries = ReadLedgers(ledgers);
  const std::map<int, pid_t> after = Pids(entries, 2);
  ASSERT_THAT(after, SizeIs(4));
  for (const int rank : {0, 1, 3}) EXPECT_EQ(after.at(rank), before.at(rank)) << rank;
  EXPECT_NE(after.at(2), before.at(2));
  EXPECT_LE(RepeatedSteps(entries).size(), 1u);
  ExpectEachSampleOnce(entries, kEpochs);
  EXPECT_THAT(run->standard_output(), HasSubstr("parameters equal on 4 ranks"));
  EXPECT_THAT(OutputOf(*run), AllOf(HasSubstr("4, 3 in place"), HasSubstr("SIGKILL")));
  // What a process writes is found under each generation in which it was.
  EXPECT_EQ(std::filesystem::read_symlink(logs + "/j/generation_2/rank_1"),
            "../generation_1/rank_1");
  EXPECT_FALSE(std::filesystem::is_symlink(logs + "/j/generation_2/rank_2"));
  const absl::Duration took = FirstStepAfter(entries, 2, killed);
  printf("from the kill to the end of the first step after it: %s\n",
         absl::FormatDuration(took).c_str());
  EXPECT_LT(took, absl::Minutes(1));
}

// Fault (in place): Several workers die at once, with `--in-place` -> The other workers keep their
// processes and go on
TEST(InPlaceTest, TwoWorkersAtOnce_ThenTheFirst_TheOthersGoOn) {
  constexpr int kEpochs = 2;
  const std::string ledgers = MakeTempDir("ledgers");
  auto run = StartStandalone(Training({"--nproc-per-node", "4"}, ledgers, kEpochs));
  ASSERT_TRUE(AwaitLedger(ledgers, [](const auto& entries) {
    return DoneSteps(entries, 1, 4) >= 10 && Pids(entries, 1).size() == 4;
  })) << OutputOf(*run);
  const std::map<int, pid_t> before = Pids(ReadLedgers(ledgers), 1);
  kill(before.at(1), SIGKILL);
  kill(before.at(3), SIGKILL);
  ASSERT_TRUE(AwaitLedger(ledgers, [](const auto& entries) {
    return DoneSteps(entries, 2, 4) >= 3 && Pids(entries, 2).size() == 4;
  })) << OutputOf(*run);
  const std::map<int, pid_t> second = Pids(ReadLedgers(ledgers), 2);
  EXPECT_EQ(second.at(0), before.at(0));
  EXPECT_EQ(second.at(2), before.at(2));
  // Rank 0 itself: its state comes from one of the others.
  kill(second.at(0), SIGKILL);
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);

  const std::vector<Entry> entries = ReadLedgers(ledgers);
  const std::map<int, pid_t> third = Pids(entries, 3);
  ASSERT_THAT(third, SizeIs(4));
  for (const int rank : {1, 2, 3}) EXPECT_EQ(third.at(rank), second.at(rank)) << rank;
  EXPECT_LE(RepeatedSteps(entries).size(), 2u);
  ExpectEachSampleOnce(entries, kEpochs);
  EXPECT_THAT(run->standard_output(), HasSubstr("parameters equal on 4 ranks"));
}

// Fault (in place): A replacement worker hangs before it takes part, with `--in-place` -> It is
// named after `timeouts.start`, or when a rank that waits for it gives up, and replaced
TEST(InPlaceTest, AWorkerThatIsStartedAnewHangs_ItIsNamedAndReplaced) {
  const std::string ledgers = MakeTempDir("ledgers"), marks = MakeTempDir("marks");
  // The first that is started after there is a mark takes it, and hangs.
  const std::string hang =
      absl::StrCat("rmdir ", marks, "/next 2>/dev/null && exec sleep 1000; exec \"$@\"");
  auto run = StartStandalone(
      Training({"--nproc-per-node", "3", "--standby", "no", "--start-timeout", "15s"}, ledgers,
               100000, {"/bin/sh", "-c", hang, "sh"}));
  ASSERT_TRUE(AwaitLedger(ledgers, [](const auto& entries) {
    return DoneSteps(entries, 1, 3) >= 3 && Pids(entries, 1).size() == 3;
  })) << OutputOf(*run);
  const std::map<int, pid_t> before = Pids(ReadLedgers(ledgers), 1);
  std::filesystem::create_directory(marks + "/next");
  ASSERT_EQ(kill(before.at(2), SIGKILL), 0);
  const auto said = run->WaitForLine("stopping generation 2", kTraining);
  ASSERT_TRUE(said.has_value()) << OutputOf(*run);
  EXPECT_THAT(*said, AllOf(HasSubstr("rank 2 (local rank 2) on "),
                           HasSubstr("the others wait for it, and it has not rejoined"),
                           HasSubstr("generation_2/rank_2")));
  ASSERT_TRUE(AwaitLedger(ledgers, [](const auto& entries) {
    return DoneSteps(entries, 3, 3) >= 1 && Pids(entries, 3).size() == 3;
  })) << OutputOf(*run);
  const std::map<int, pid_t> after = Pids(ReadLedgers(ledgers), 3);
  for (const int rank : {0, 1}) EXPECT_EQ(after.at(rank), before.at(rank)) << rank;
  run->Kill(SIGINT);
  EXPECT_EQ(run->Wait(), 130) << OutputOf(*run);
}

// Fault (in place): A node is lost and returns, with `--in-place` -> The world shrinks and grows,
// and each sample of an epoch is seen once
TEST(InPlaceTest, FourNodesThreeNodesFourNodes_EachSampleIsSeenOnce) {
  constexpr int kEpochs = 4;
  const int port = FreePort();
  const std::string ledgers = MakeTempDir("ledgers");
  // The digits are drawn once.
  const std::map<std::string, std::string> env = {{"XDG_CACHE_HOME", MakeTempDir("cache")}};
  const auto start = [&](int node) {
    return StartNode(port, "3:4", node,
                     Training({"--settle", "60s", "--scale-up", "immediately"}, ledgers, kEpochs),
                     env);
  };
  std::vector<std::unique_ptr<Process>> nodes;
  for (int i = 0; i < 4; ++i) nodes.push_back(start(i));
  ASSERT_TRUE(AwaitLedger(ledgers, [](const auto& entries) {
    return DoneSteps(entries, 1, 4) >= 5 && Pids(entries, 1).size() == 4;
  }));
  const std::map<int, pid_t> first = Pids(ReadLedgers(ledgers), 1);
  for (auto& node : nodes) {
    ASSERT_TRUE(node->WaitForLine("generation 1 running", kTraining).has_value())
        << OutputOf(*node);
  }
  const size_t victim = FirstThatDoesNotServe(nodes);
  const MonoTime killed = MonoNow();
  nodes[victim]->Kill(SIGKILL);
  ASSERT_TRUE(
      AwaitLedger(ledgers, [](const auto& entries) { return DoneSteps(entries, 2, 3) >= 5; }));
  const std::map<int, pid_t> second = Pids(ReadLedgers(ledgers), 2);
  nodes[victim] = start(static_cast<int>(victim));
  for (auto& node : nodes) ASSERT_EQ(node->Wait(kTraining), 0) << OutputOf(*node);

  const std::vector<Entry> entries = ReadLedgers(ledgers);
  const auto processes = [](const std::map<int, pid_t>& pids) {
    std::set<pid_t> set;
    for (const auto& [rank, pid] : pids) set.insert(pid);
    return set;
  };
  const std::set<pid_t> one = processes(first), two = processes(second),
                        three = processes(Pids(entries, 3));
  ASSERT_THAT(two, SizeIs(3));
  ASSERT_THAT(three, SizeIs(4));
  EXPECT_TRUE(std::includes(one.begin(), one.end(), two.begin(), two.end()));
  EXPECT_TRUE(std::includes(three.begin(), three.end(), two.begin(), two.end()));
  EXPECT_GE(DoneSteps(entries, 3, 4), 1);
  EXPECT_LE(RepeatedSteps(entries).size(), 2u);
  ExpectEachSampleOnce(entries, kEpochs);
  std::string said;
  for (const auto& node : nodes) said += node->standard_output();
  EXPECT_THAT(said, HasSubstr("parameters equal on 4 ranks"));
  printf("from the end of a node to the end of the first step of the others: %s\n",
         absl::FormatDuration(FirstStepAfter(entries, 2, killed)).c_str());
}

// The process of this training that was started to stand by; 0: there is none now.
pid_t FindStandby(const std::string& ledgers) {
  std::error_code error;
  for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
    pid_t pid = 0;
    const std::string directory = process.path().string();
    if (!absl::SimpleAtoi(process.path().filename().string(), &pid)) continue;
    if (!absl::StrContains(ReadFileOrEmpty(directory + "/cmdline"), ledgers)) continue;
    if (!absl::StrContains(ReadFileOrEmpty(directory + "/environ"), "CADRE_STANDS_BY=")) continue;
    // One that has a place writes into its ledger.
    if (!std::filesystem::exists(absl::StrCat(ledgers, "/", pid))) return pid;
  }
  return 0;
}

pid_t AwaitStandby(const std::string& ledgers) {
  const MonoTime end = MonoNow() + kTraining;
  pid_t pid = 0;
  while (pid == 0 && MonoNow() < end) {
    pid = FindStandby(ledgers);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return pid;
}

// Fault (in place): A worker is killed while a standby process waits -> The standby process, which
// is already started, takes its place; it ends with the job
TEST(InPlaceTest, AProcessThatStandsBy_TakesThePlaceOfOneThatIsKilled) {
  const std::string ledgers = MakeTempDir("ledgers");
  // Longer than anybody waits.
  auto run = StartStandalone(Training({"--nproc-per-node", "4"}, ledgers, 100000));
  bool taken = false;
  int generation = 1;
  // One that is still loading does not take the place, and stands by for the next.
  for (; generation <= 3 && !taken; ++generation) {
    ASSERT_TRUE(AwaitLedger(ledgers, [generation](const auto& entries) {
      return DoneSteps(entries, generation, 4) >= 3 && Pids(entries, generation).size() == 4;
    })) << OutputOf(*run);
    const pid_t standby = AwaitStandby(ledgers);
    ASSERT_NE(standby, 0) << OutputOf(*run);
    const std::map<int, pid_t> before = Pids(ReadLedgers(ledgers), generation);
    const MonoTime killed = MonoNow();
    kill(before.at(2), SIGKILL);
    ASSERT_TRUE(AwaitLedger(ledgers, [generation](const auto& entries) {
      return DoneSteps(entries, generation + 1, 4) >= 1 &&
             Pids(entries, generation + 1).size() == 4;
    })) << OutputOf(*run);
    const std::vector<Entry> entries = ReadLedgers(ledgers);
    const std::map<int, pid_t> after = Pids(entries, generation + 1);
    for (const int rank : {0, 1, 3}) EXPECT_EQ(after.at(rank), before.at(rank)) << rank;
    EXPECT_NE(after.at(2), before.at(2));
    taken = after.at(2) == standby;
    printf("from the kill to the end of the first step after it%s: %s\n",
           taken ? "" : ", with a new process",
           absl::FormatDuration(FirstStepAfter(entries, generation + 1, killed)).c_str());
  }
  EXPECT_TRUE(taken) << OutputOf(*run);
  EXPECT_LE(RepeatedSteps(ReadLedgers(ledgers)).size(), static_cast<size_t>(generation - 1));
  // The next one goes with the job.
  const pid_t next = AwaitStandby(ledgers);
  EXPECT_NE(next, 0);
  run->Kill(SIGINT);
  EXPECT_EQ(run->Wait(), 130) << OutputOf(*run);
  EXPECT_TRUE(WaitGone(next, absl::Seconds(20)));
}

// Fault (in place): A standby process dies -> The launcher reports it; the next lost worker is
// started from scratch, and that generation gets another standby process
TEST(InPlaceTest, AProcessThatStandsByDies_IsSaid_AndTheNextGenerationHasAnother) {
  const std::string ledgers = MakeTempDir("ledgers");
  auto run = StartStandalone(Training({"--nproc-per-node", "2"}, ledgers, 100000));
  ASSERT_TRUE(AwaitLedger(ledgers, [](const auto& entries) {
    return DoneSteps(entries, 1, 2) >= 3 && Pids(entries, 1).size() == 2;
  })) << OutputOf(*run);
  const pid_t standby = AwaitStandby(ledgers);
  ASSERT_NE(standby, 0) << OutputOf(*run);
  ASSERT_EQ(kill(standby, SIGKILL), 0);
  const auto said =
      run->WaitForLine("a standby process, which would replace a lost worker", kTraining);
  ASSERT_TRUE(said.has_value()) << OutputOf(*run);
  EXPECT_THAT(*said, HasSubstr("SIGKILL"));
  // No worker noticed, and the one that is lost next has nobody to take its place at once.
  const std::map<int, pid_t> before = Pids(ReadLedgers(ledgers), 1);
  ASSERT_EQ(kill(before.at(1), SIGKILL), 0);
  ASSERT_TRUE(AwaitLedger(ledgers, [](const auto& entries) {
    return DoneSteps(entries, 2, 2) >= 1 && Pids(entries, 2).size() == 2;
  })) << OutputOf(*run);
  const std::map<int, pid_t> after = Pids(ReadLedgers(ledgers), 2);
  EXPECT_EQ(after.at(0), before.at(0));
  EXPECT_NE(after.at(1), standby);
  EXPECT_NE(AwaitStandby(ledgers), 0) << OutputOf(*run);
  run->Kill(SIGINT);
  EXPECT_EQ(run->Wait(), 130) << OutputOf(*run);
}

// Fault (in place): A program does not support standby processes -> The launcher says so once, and
// lost workers are started from scratch
TEST(InPlaceTest, AProgramThatCannotStandBy_IsSaidOnce_AndWorkersAreStartedAnew) {
  const std::string ledgers = MakeTempDir("ledgers");
  const std::string logs = MakeTempDir("logs");
  auto run = StartStandalone(
      Training({"--nproc-per-node", "2", "--log-dir", logs, "--job-name", "j"}, ledgers, 100000,
               {"/bin/sh", "-c", R"([ -z "$CADRE_STANDS_BY" ] || exit 3; exec "$@")", "sh"}));
  const auto said = run->WaitForLine("a standby process", kTraining);
  ASSERT_TRUE(said.has_value()) << OutputOf(*run);
  EXPECT_THAT(*said, AllOf(HasSubstr("exited with status 3"), HasSubstr("/generation_1/standby_0"),
                           HasSubstr("--set restart.standby=false")));
  kill(Pids(ReadLedgers(ledgers), 1).at(1), SIGKILL);
  EXPECT_TRUE(AwaitLedger(ledgers, [](const auto& entries) {
    return DoneSteps(entries, 2, 2) >= 1 && Pids(entries, 2).size() == 2;
  })) << OutputOf(*run);
  run->Kill(SIGINT);
  EXPECT_EQ(run->Wait(), 130) << OutputOf(*run);
}

// A program that does not take part is restarted as a whole.
//
// Fault (in place): A worker dies and the program does not support rejoining, with `--in-place` ->
// The whole job is restarted
TEST(InPlaceTest, AProgramThatCannotRejoin_IsStartedAnew) {
  auto run =
      StartStandalone({"--nproc-per-node", "2", "--max-restarts", "1", "--in-place", "--", kProbe});
  const auto first = NextProbes(*run, 2);
  ASSERT_THAT(first, SizeIs(2)) << OutputOf(*run);
  kill(first[1].pid, SIGKILL);
  const auto second = NextProbes(*run, 2);
  ASSERT_THAT(second, SizeIs(2)) << OutputOf(*run);
  for (const ProbeLine& probe : second) {
    EXPECT_EQ(probe.generation, 2);
    EXPECT_NE(probe.pid, first[0].pid);
    EXPECT_NE(probe.pid, first[1].pid);
  }
  run->Kill(SIGINT);
  EXPECT_EQ(run->Wait(), 130) << OutputOf(*run);
}

}  // namespace
}  // namespace cadre
