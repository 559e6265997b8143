// Python programs that `cadre run` starts again from a process that has imported their packages,
// with the PyTorch, Lightning and Accelerate of tools/python_env: what they do, warm and after one
// more kill, is what they did when they were started plainly.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"
#include "tests/testing/pypi_python.h"

namespace cadre {
namespace {

using ::testing::ContainsRegex;

constexpr char kScript[] = "tests/compatibility/warm_script.py";
constexpr absl::Duration kTimeout = absl::Minutes(5);

class WarmStartTest : public PypiPythonTest {
 protected:
  // The launcher, once the case was done plainly and twice warm by all ranks.
  std::unique_ptr<Process> Run(const std::string& name, int workers) {
    const std::string folder = MakeTempDir("warm");
    auto launcher = StartCadre({"run", "--standalone", "--nproc-per-node", absl::StrCat(workers),
                                "--max-restarts", "20", "--restart-window", "1s", "--timeline",
                                "--log-dir", folder + "/logs", "--", python_, "-u", kScript, name},
                               {{"WARM_SCRIPT_FOLDER", folder}});
    EXPECT_EQ(launcher->Wait(kTimeout), 0) << OutputOf(*launcher);
    return launcher;
  }
  // What the ranks said that were started this way.
  static std::vector<std::string> Results(const Process& launcher, const std::string& how) {
    std::vector<std::string> results;
    for (const absl::string_view line : absl::StrSplit(launcher.standard_output(), '\n')) {
      const size_t at = line.find(how + " ");
      if (at != absl::string_view::npos) results.emplace_back(line.substr(at + how.size() + 1));
    }
    return results;
  }
  static void ExpectTheSame(const Process& launcher, size_t workers) {
    const std::vector<std::string> warm = Results(launcher, "warm");
    ASSERT_EQ(warm.size(), workers) << OutputOf(launcher);
    EXPECT_EQ(Results(launcher, "plainly"), warm) << OutputOf(launcher);
    EXPECT_EQ(Results(launcher, "again"), warm) << OutputOf(launcher);
  }
};

TEST_F(WarmStartTest, PoolsLoadersPicklesAndPathsAreThoseOfAPlainStart) {
  ExpectTheSame(*Run("python", 1), 1);
}

TEST_F(WarmStartTest, RanksTrainAndDrawNumbersOfTheirOwn) {
  ExpectTheSame(*Run("ddp", 2), 2);
  const auto launcher = Run("random", 2);
  EXPECT_THAT(Results(*launcher, "warm"), testing::ElementsAre("2 2", "2 2"))
      << OutputOf(*launcher);
}

TEST_F(WarmStartTest, ShardedModels) { ExpectTheSame(*Run("fsdp", 2), 2); }

TEST_F(WarmStartTest, TensorParallelModels) { ExpectTheSame(*Run("tensor_parallel", 2), 2); }

TEST_F(WarmStartTest, DistributedCheckpoints) { ExpectTheSame(*Run("checkpoint", 2), 2); }

TEST_F(WarmStartTest, CompiledFunctions) { ExpectTheSame(*Run("compiled", 1), 1); }

// It reads RANK while it is imported, so it is imported by the workers.
TEST_F(WarmStartTest, Lightning) {
  const auto launcher = Run("lightning", 2);
  ExpectTheSame(*launcher, 2);
  EXPECT_THAT(OutputOf(*launcher), ContainsRegex("imported by each worker itself: .*lightning"));
}

TEST_F(WarmStartTest, Accelerate) { ExpectTheSame(*Run("accelerate", 2), 2); }

// PyPI's packages keep state of the process in their modules. State that is the same in each plain
// start must be the same in each warm one, and state that differs must differ.
TEST_F(WarmStartTest, WhatModulesRememberIsThatOfAPlainStart) {
  const std::string script = "tests/compatibility/warm_kinds.py";
  const std::string folder = MakeTempDir("kinds");
  for (const std::string how : {"plain", "warm"}) {
    std::vector<std::string> arguments = {"run",
                                          "--standalone",
                                          "--job-name",
                                          "kinds",
                                          "--nproc-per-node",
                                          "2",
                                          "--max-restarts",
                                          "20",
                                          "--restart-window",
                                          "1s",
                                          "--timeline",
                                          "--log-dir",
                                          folder + "/logs"};
    if (how == "plain") arguments.emplace_back("--no-warm");
    for (const std::string& word : {std::string("--"), python_, std::string("-u"), script}) {
      arguments.push_back(word);
    }
    const auto launcher = StartCadre(
        arguments,
        {{"WARM_SCRIPT_FOLDER", folder}, {"WARM_SCRIPT_HOW", how}, {"PYTHONHASHSEED", "0"}});
    ASSERT_EQ(launcher->Wait(2 * kTimeout), 0) << OutputOf(*launcher);
    // Packages that are not imported beforehand are named.
    if (how == "warm") {
      EXPECT_THAT(OutputOf(*launcher),
                  ContainsRegex("imported by each worker itself: .*lightning"));
    }
  }
  const auto compared = StartProgram(python_, {script, "compare", folder});
  EXPECT_EQ(compared->Wait(kTimeout), 0) << OutputOf(*compared);
}

}  // namespace
}  // namespace cadre
