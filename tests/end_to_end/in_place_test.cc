// Recovery in place: the MNIST example loses workers and nodes, and those that are left go on in
// their processes. The ledgers that the workers write say who did what.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "tests/end_to_end/launch.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kMnist[] = "examples/mnist_cnn/mnist_cnn";
constexpr absl::Duration kTraining = absl::Minutes(4);
constexpr int kSamples = 1920;

// One line of a ledger.
struct Entry {
  pid_t pid = 0;
  bool done = false;  // else: take
  int generation = 0;
  int rank = 0;
  int world = 0;
  int epoch = 0;
  int step = 0;
  int64_t at_us = 0;
  std::vector<int> samples;
};

Entry ParseEntry(pid_t pid, absl::string_view line) {
  Entry entry;
  entry.pid = pid;
  entry.done = absl::StartsWith(line, "done ");
  std::map<std::string, int64_t> numbers;
  for (const absl::string_view word : absl::StrSplit(line, ' ')) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(word, absl::MaxSplits('=', 1));
    int64_t value = 0;
    if (pair.first == "samples") {
      for (const absl::string_view sample : absl::StrSplit(pair.second, ',', absl::SkipEmpty())) {
        entry.samples.push_back(-1);
        EXPECT_TRUE(absl::SimpleAtoi(sample, &entry.samples.back())) << line;
      }
    } else if (absl::SimpleAtoi(pair.second, &value)) {
      numbers[pair.first] = value;
    }
  }
  entry.generation = static_cast<int>(numbers["generation"]);
  entry.rank = static_cast<int>(numbers["rank"]);
  entry.world = static_cast<int>(numbers["world"]);
  entry.epoch = static_cast<int>(numbers["epoch"]);
  entry.step = static_cast<int>(numbers["step"]);
  entry.at_us = numbers["at_us"];
  return entry;
}

// What all processes have written so far.
std::vector<Entry> ReadLedgers(const std::string& directory) {
  std::vector<Entry> entries;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    pid_t pid = 0;
    EXPECT_TRUE(absl::SimpleAtoi(file.path().filename().string(), &pid));
    const std::string text = ReadFileOrEmpty(file.path().string());
    // The last piece is empty, or a line that is being written.
    std::vector<std::string> lines = absl::StrSplit(text, '\n');
    lines.pop_back();
    for (const std::string& line : lines) entries.push_back(ParseEntry(pid, line));
  }
  return entries;
}

bool AwaitLedger(const std::string& directory,
                 const std::function<bool(const std::vector<Entry>&)>& holds) {
  const MonoTime end = MonoNow() + kTraining;
  while (MonoNow() < end) {
    if (holds(ReadLedgers(directory))) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

int DoneSteps(const std::vector<Entry>& entries, int generation, int world) {
  std::set<int> steps;
  for (const Entry& entry : entries) {
    if (entry.done && entry.generation == generation && entry.world == world) {
      steps.insert(entry.step);
    }
  }
  return static_cast<int>(steps.size());
}

// Process of each rank of a generation.
std::map<int, pid_t> Pids(const std::vector<Entry>& entries, int generation) {
  std::map<int, pid_t> pids;
  for (const Entry& entry : entries) {
    if (entry.generation == generation) pids[entry.rank] = entry.pid;
  }
  return pids;
}

// Steps that were begun in more than one generation.
std::set<int> RepeatedSteps(const std::vector<Entry>& entries) {
  std::map<int, std::set<int>> generations;
  for (const Entry& entry : entries) generations[entry.step].insert(entry.generation);
  std::set<int> repeated;
  for (const auto& [step, these] : generations) {
    if (these.size() > 1) repeated.insert(step);
  }
  return repeated;
}

absl::Duration FirstStepAfter(const std::vector<Entry>& entries, int generation, MonoTime since) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const Entry& entry : entries) {
    if (entry.done && entry.generation == generation) first = std::min(first, entry.at_us);
  }
  return MonoTime::FromMicros(first) - since;
}

// Every epoch has every sample once. A step counts in the last generation that began it.
void ExpectEachSampleOnce(const std::vector<Entry>& entries, int epochs) {
  std::map<int, int> counts_in;
  for (const Entry& entry : entries) {
    counts_in[entry.step] = std::max(counts_in[entry.step], entry.generation);
  }
  std::map<int, std::map<int, int>> seen;  // epoch, sample: how often
  for (const Entry& entry : entries) {
    if (entry.done || entry.generation != counts_in[entry.step]) continue;
    for (const int sample : entry.samples) ++seen[entry.epoch][sample];
  }
  ASSERT_THAT(seen, SizeIs(epochs));
  for (const auto& [epoch, samples] : seen) {
    EXPECT_THAT(samples, SizeIs(kSamples)) << "epoch " << epoch;
    for (const auto& [sample, times] : samples) {
      ASSERT_EQ(times, 1) << "sample " << sample << " of epoch " << epoch;
    }
  }
}

std::vector<std::string> Training(const std::string& ledgers, int epochs) {
  return {"--in-place",
          "--max-restarts",
          "5",
          "--",
          kMnist,
          "--limit",
          absl::StrCat(kSamples),
          "--batch-size",
          "16",
          "--epochs",
          absl::StrCat(epochs),
          "--ledger",
          ledgers};
}

std::vector<std::string> With(std::vector<std::string> first,
                              const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST(InPlaceTest, OneOfFourWorkersIsKilled_TheOthersGoOn) {
  constexpr int kEpochs = 2;
  const std::string ledgers = MakeTempDir("ledgers");
  auto run =
      StartStandalone(With({"--nproc-per-node", "4", "--timeline"}, Training(ledgers, kEpochs)));
  ASSERT_TRUE(AwaitLedger(ledgers, [](const auto& entries) {
    return DoneSteps(entries, 1, 4) >= 10 && Pids(entries, 1).size() == 4;
  })) << Said(*run);
  const std::map<int, pid_t> before = Pids(ReadLedgers(ledgers), 1);
  const MonoTime killed = MonoNow();
  ASSERT_EQ(kill(before.at(2), SIGKILL), 0);
  ASSERT_EQ(run->Wait(kTraining), 0) << Said(*run);

  const std::vector<Entry> entries = ReadLedgers(ledgers);
  const std::map<int, pid_t> after = Pids(entries, 2);
  ASSERT_THAT(after, SizeIs(4));
  for (const int rank : {0, 1, 3}) EXPECT_EQ(after.at(rank), before.at(rank)) << rank;
  EXPECT_NE(after.at(2), before.at(2));
  EXPECT_LE(RepeatedSteps(entries).size(), 1u);
  ExpectEachSampleOnce(entries, kEpochs);
  EXPECT_THAT(run->standard_output(), HasSubstr("parameters equal on 4 ranks"));
  EXPECT_THAT(Said(*run), AllOf(HasSubstr("4, 3 in place"), HasSubstr("SIGKILL")));
  const absl::Duration took = FirstStepAfter(entries, 2, killed);
  printf("from the kill to the end of the first step after it: %s\n",
         absl::FormatDuration(took).c_str());
  EXPECT_LT(took, absl::Minutes(1));
}

TEST(InPlaceTest, TwoWorkersAtOnce_ThenTheFirst_TheOthersGoOn) {
  constexpr int kEpochs = 2;
  const std::string ledgers = MakeTempDir("ledgers");
  auto run = StartStandalone(With({"--nproc-per-node", "4"}, Training(ledgers, kEpochs)));
  ASSERT_TRUE(AwaitLedger(ledgers, [](const auto& entries) {
    return DoneSteps(entries, 1, 4) >= 10 && Pids(entries, 1).size() == 4;
  })) << Said(*run);
  const std::map<int, pid_t> before = Pids(ReadLedgers(ledgers), 1);
  kill(before.at(1), SIGKILL);
  kill(before.at(3), SIGKILL);
  ASSERT_TRUE(AwaitLedger(ledgers, [](const auto& entries) {
    return DoneSteps(entries, 2, 4) >= 3 && Pids(entries, 2).size() == 4;
  })) << Said(*run);
  const std::map<int, pid_t> second = Pids(ReadLedgers(ledgers), 2);
  EXPECT_EQ(second.at(0), before.at(0));
  EXPECT_EQ(second.at(2), before.at(2));
  // Rank 0 itself: its state comes from one of the others.
  kill(second.at(0), SIGKILL);
  ASSERT_EQ(run->Wait(kTraining), 0) << Said(*run);

  const std::vector<Entry> entries = ReadLedgers(ledgers);
  const std::map<int, pid_t> third = Pids(entries, 3);
  ASSERT_THAT(third, SizeIs(4));
  for (const int rank : {1, 2, 3}) EXPECT_EQ(third.at(rank), second.at(rank)) << rank;
  EXPECT_LE(RepeatedSteps(entries).size(), 2u);
  ExpectEachSampleOnce(entries, kEpochs);
  EXPECT_THAT(run->standard_output(), HasSubstr("parameters equal on 4 ranks"));
}

TEST(InPlaceTest, FourNodesThreeNodesFourNodes_EachSampleIsSeenOnce) {
  constexpr int kEpochs = 4;
  const int port = FreePort();
  const std::string ledgers = MakeTempDir("ledgers");
  // The digits are drawn once.
  const std::map<std::string, std::string> env = {{"XDG_CACHE_HOME", MakeTempDir("cache")}};
  const auto start = [&](int node) {
    return StartNode(
        port, "3:4", node,
        With({"--settle", "60s", "--scale-up", "immediately"}, Training(ledgers, kEpochs)), env);
  };
  std::vector<std::unique_ptr<Process>> nodes;
  for (int i = 0; i < 4; ++i) nodes.push_back(start(i));
  ASSERT_TRUE(AwaitLedger(ledgers, [](const auto& entries) {
    return DoneSteps(entries, 1, 4) >= 5 && Pids(entries, 1).size() == 4;
  }));
  const std::map<int, pid_t> first = Pids(ReadLedgers(ledgers), 1);
  for (auto& node : nodes) {
    ASSERT_TRUE(node->WaitForLine("generation 1 running", kTraining).has_value()) << Said(*node);
  }
  // Any but the one that serves the rendezvous, which is whoever was first.
  size_t victim = 0;
  while (absl::StrContains(Said(*nodes[victim]), "serving")) ++victim;
  const MonoTime killed = MonoNow();
  nodes[victim]->Kill(SIGKILL);
  ASSERT_TRUE(
      AwaitLedger(ledgers, [](const auto& entries) { return DoneSteps(entries, 2, 3) >= 5; }));
  const std::map<int, pid_t> second = Pids(ReadLedgers(ledgers), 2);
  nodes[victim] = start(static_cast<int>(victim));
  for (auto& node : nodes) ASSERT_EQ(node->Wait(kTraining), 0) << Said(*node);

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

// A program that does not take part is restarted as a whole.
TEST(InPlaceTest, AProgramThatCannotRejoin_IsStartedAnew) {
  auto run =
      StartStandalone({"--nproc-per-node", "2", "--max-restarts", "1", "--in-place", "--", kProbe});
  const auto first = NextProbes(*run, 2);
  ASSERT_THAT(first, SizeIs(2)) << Said(*run);
  kill(first[1].pid, SIGKILL);
  const auto second = NextProbes(*run, 2);
  ASSERT_THAT(second, SizeIs(2)) << Said(*run);
  for (const ProbeLine& probe : second) {
    EXPECT_EQ(probe.generation, 2);
    EXPECT_NE(probe.pid, first[0].pid);
    EXPECT_NE(probe.pid, first[1].pid);
  }
  run->Kill(SIGINT);
  EXPECT_EQ(run->Wait(), 130) << Said(*run);
}

}  // namespace
}  // namespace cadre
