// A sharded training loses a rank again and again, in each phase of a step: nothing is lost but
// that step, and it ends with the bits of one that nothing happened to.
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

constexpr int kRanks = 3;
constexpr int kPhases = 5;
constexpr absl::Duration kTimeout = absl::Minutes(8);

// What comes behind NAME= in a worker's line.
std::string Field(const std::string& line, const std::string& name) {
  for (const absl::string_view word : absl::StrSplit(line, ' ')) {
    if (absl::StartsWith(word, name + "=")) return std::string(word.substr(name.size() + 1));
  }
  return "";
}
int Number(const std::string& line, const std::string& name) {
  return std::atoi(Field(line, name).c_str());
}

// Gives the parameters' bytes at the end.
std::string Train(const std::string& store, int steps, int kills,
                  const std::vector<std::string>& flags) {
  const std::string directory = MakeTempDir("sharded");
  std::vector<std::string> arguments = {"--nproc-per-node",  absl::StrCat(kRanks), "--max-restarts",
                                        absl::StrCat(kills), "--backoff",          "1ms..1ms"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  arguments.insert(arguments.end(), {"tests/faults/sharded_worker", store, directory,
                                     absl::StrCat(steps), absl::StrCat(kills)});
  auto run = StartStandalone(arguments);
  EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
  std::map<int, int> step_of_death, after;
  std::map<std::string, int> deaths;
  const std::vector<std::string> lines = absl::StrSplit(run->standard_output(), '\n');
  for (const std::string& line : lines) {
    if (absl::StrContains(line, "dies ")) {
      step_of_death[Number(line, "generation")] = Number(line, "step");
      ++deaths[Field(line, "phase")];
    } else if (absl::StrContains(line, "life ")) {
      after[Number(line, "generation")] = Number(line, "after");
    }
  }
  EXPECT_EQ(step_of_death.size(), static_cast<size_t>(kills));
  for (const char* phase : {"gather", "forward", "reduce-scatter", "step", "save"}) {
    EXPECT_EQ(deaths[phase], kills / kPhases) << phase;
  }
  for (const auto& [generation, step] : step_of_death) {
    EXPECT_GE(after[generation + 1], step - 1) << "after generation " << generation;
  }
  return ReadFileOrEmpty(directory + "/parameters");
}

void ExpectNothingIsLost(const std::string& store, int kills,
                         const std::vector<std::string>& flags) {
  const int steps = 2 * kills + 10;
  const std::string undisturbed = Train(store, steps, 0, {});
  ASSERT_GT(undisturbed.size(), 10000u);
  // Not EXPECT_EQ, which would print them.
  EXPECT_TRUE(Train(store, steps, kills, flags) == undisturbed);
}

// Fault (checkpoint): A rank of a sharded training is killed in a gather, a forward pass, a
// reduce-scatter, the optimizer's step or a save, with `--in-place` -> Only that step is lost, and
// the result is bitwise that of a run without failures
TEST(ShardedKillsTest, Ten_InPlaceFromTheNodesMemory) {
  ExpectNothingIsLost("memory", 10, {"--in-place"});
}

// Fault (checkpoint): A rank of a sharded training is killed at any point, and the job restarts
// from a sharded checkpoint -> The result is bitwise that of a run without failures
TEST(ShardedKillsTest, Ten_RestartsFromACheckpoint) { ExpectNothingIsLost("directory", 10, {}); }

TEST(ShardedKillsTest, Hundred_InPlaceFromTheNodesMemory) {
  ExpectNothingIsLost("memory", 100, {"--in-place"});
}

TEST(ShardedKillsTest, Hundred_RestartsFromACheckpoint) {
  ExpectNothingIsLost("directory", 100, {});
}

}  // namespace
}  // namespace cadre
