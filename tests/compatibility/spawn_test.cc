// Ranks that a program starts itself.
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/compatibility/launched_line.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Minutes(2);

class SpawnTest : public ::testing::Test {
 protected:
  std::unique_ptr<Process> Start(int ranks, std::vector<std::string> arguments = {},
                                 std::map<std::string, std::string> env = {},
                                 bool terminal = false) {
    arguments.insert(arguments.begin(), {"--spawn", absl::StrCat(ranks)});
    env.emplace("XDG_RUNTIME_DIR", runtime_);
    return StartProgram(kLaunchedProbe, arguments, env, terminal);
  }
  // The processes of all ranks, once they have met.
  static std::vector<pid_t> Pids(Process& process, size_t ranks) {
    std::vector<pid_t> pids;
    for (const std::string& line : process.WaitForLines("launched rank=", ranks, kTimeout)) {
      pid_t pid = 0;
      EXPECT_TRUE(absl::SimpleAtoi(line.substr(line.rfind('=') + 1), &pid)) << line;
      pids.push_back(pid);
    }
    EXPECT_EQ(pids.size(), ranks) << OutputOf(process);
    return pids;
  }
  void ExpectFails(int ranks, const std::vector<std::string>& arguments,
                   const ::testing::Matcher<std::string>& said) {
    const auto process = Start(ranks, arguments);
    EXPECT_EQ(process->Wait(kTimeout), 1) << OutputOf(*process);
    EXPECT_THAT(process->standard_error(), said);
  }

  const std::string runtime_ = MakeTempDir("run");
};

TEST_F(SpawnTest, EveryRankRunsTheFunction) {
  const auto process = Start(3);
  EXPECT_EQ(process->Wait(kTimeout), 0) << OutputOf(*process);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(process->standard_output(), HasSubstr(LaunchedLine(rank, 3, 3)));
  }
}

TEST_F(SpawnTest, SeveralCallsOneAfterTheOther) {
  const auto process = Start(3, {"--calls", "3"});
  EXPECT_EQ(process->Wait(kTimeout), 0) << OutputOf(*process);
  for (int ranks = 1; ranks <= 3; ++ranks) {
    EXPECT_THAT(process->standard_output(), HasSubstr(LaunchedLine(ranks - 1, ranks, ranks)));
  }
}

// Fault (worker): A rank of `Spawn()` fails, dies or never makes the call -> The others get
// SIGTERM, and `Spawn()` returns the first rank's error
TEST_F(SpawnTest, TheFirstFailureIsReturned) {
  ExpectFails(3, {"--error", "1"},
              AllOf(HasSubstr("DATA_LOSS"), HasSubstr("rank 1 (process "),
                    HasSubstr("failed: an error of its own")));
  ExpectFails(3, {"--kill", "2"},
              AllOf(HasSubstr("INTERNAL"), HasSubstr("rank 2 (process "),
                    HasSubstr("was ended by signal 9 (SIGKILL)")));
  ExpectFails(2, {"--exit", "0"},
              AllOf(HasSubstr("rank 0 (process "), HasSubstr("exited with status 3 before")));
  ExpectFails(2, {"--leave", "x"}, HasSubstr("exited with status 0 before"));
}

// Fault (worker): A rank of `Spawn()` ignores the SIGTERM that follows another rank's failure -> It
// is killed with SIGKILL after the grace
TEST_F(SpawnTest, ThoseThatDoNotEndAreKilledAfterTheGrace) {
  const auto process = Start(2, {"--stubborn", "1"});
  const std::vector<pid_t> pids = Pids(*process, 2);
  EXPECT_EQ(process->Wait(kTimeout), 1) << OutputOf(*process);
  for (const pid_t pid : pids) EXPECT_FALSE(IsAlive(pid));
}

TEST_F(SpawnTest, ItIsNotNested) {
  ExpectFails(2, {"--nested", "1"},
              AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("a rank cannot call Spawn()")));
}

TEST_F(SpawnTest, ItsBounds) {
  for (const int ranks : {-1, 257}) {
    ExpectFails(ranks, {}, AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("1 to 256 ranks")));
  }
}

TEST_F(SpawnTest, ARankOfALauncherStartsNone) {
  const auto process = Start(2, {}, {{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(process->Wait(kTimeout), 1) << OutputOf(*process);
  EXPECT_THAT(process->standard_error(),
              AllOf(HasSubstr("FAILED_PRECONDITION"),
                    HasSubstr("the environment (RANK=1) gave this process a rank already")));
  auto run = StartStandalone({"--", kLaunchedProbe, "--spawn", "2"});
  EXPECT_EQ(run->Wait(kTimeout), 1) << OutputOf(*run);
  EXPECT_THAT(OutputOf(*run), HasSubstr("Cadre's agent (RANK=0) gave this process a rank already"));
}

// Fault (worker): The process that called `Spawn()` is killed -> Its ranks end with it
TEST_F(SpawnTest, RanksEndWithTheCaller) {
  const auto process = Start(2, {"--stubborn", "7"});
  const std::vector<pid_t> pids = Pids(*process, 2);
  process->Kill(SIGKILL);
  for (const pid_t pid : pids) EXPECT_TRUE(WaitGone(pid, kTimeout)) << pid;
}

TEST_F(SpawnTest, CtrlCEndsAll) {
  const auto process = Start(2, {"--exit", "7"}, {}, /*terminal=*/true);
  const std::vector<pid_t> pids = Pids(*process, 2);
  process->Type("\x03");
  EXPECT_EQ(process->Wait(kTimeout), 128 + SIGINT);
  for (const pid_t pid : pids) EXPECT_TRUE(WaitGone(pid, kTimeout)) << pid;
}

}  // namespace
}  // namespace cadre
