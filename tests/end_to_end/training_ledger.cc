#include "tests/end_to_end/training_ledger.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

using ::testing::SizeIs;

constexpr char kMnist[] = "examples/mnist_cnn/mnist_cnn";
constexpr int kSamples = 1920;

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

}  // namespace

std::vector<Entry> ReadLedgers(const std::string& directory) {
  std::vector<Entry> entries;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    pid_t pid = 0;
    const std::string name = file.path().filename().string();
    EXPECT_TRUE(absl::SimpleAtoi(name.substr(0, name.find('-')), &pid)) << name;
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

std::map<int, pid_t> Pids(const std::vector<Entry>& entries, int generation) {
  std::map<int, pid_t> pids;
  for (const Entry& entry : entries) {
    if (entry.generation == generation) pids[entry.rank] = entry.pid;
  }
  return pids;
}

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

std::vector<std::string> Training(std::vector<std::string> flags, const std::string& ledgers,
                                  int epochs, const std::vector<std::string>& wrapper) {
  flags.insert(flags.end(), {"--in-place", "--max-restarts", "5", "--"});
  flags.insert(flags.end(), wrapper.begin(), wrapper.end());
  flags.insert(flags.end(), {kMnist, "--limit", absl::StrCat(kSamples), "--batch-size", "16",
                             "--epochs", absl::StrCat(epochs), "--ledger", ledgers});
  return flags;
}

}  // namespace cadre
