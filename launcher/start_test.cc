// What the command does before it dispatches, which delays every start of a job; and what it prints
// if it cannot start.
#include <elf.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <fstream>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

extern char** environ;

namespace cadre::launcher {
namespace {

constexpr char kCadre[] = "launcher/cadre";

TEST(StartTest, TheProgramLiesWhereItWasLinkedFor) {
  Elf64_Ehdr header = {};
  std::ifstream(kCadre, std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof(header));
  EXPECT_EQ(header.e_type, ET_EXEC);
}

// Most of a start's time is spent on touching memory for the first time: 519 pages took 3 ms, 280
// take 1.5.
TEST(StartTest, LittleMemoryIsTouchedBeforeTheCommandRuns) {
  char* const argv[] = {const_cast<char*>(kCadre), const_cast<char*>("version"), nullptr};
  pid_t pid = 0;
  ASSERT_EQ(posix_spawn(&pid, kCadre, nullptr, nullptr, argv, environ), 0);
  int status = 0;
  rusage used = {};
  ASSERT_EQ(wait4(pid, &status, 0, &used), pid);
  EXPECT_EQ(status, 0);
  EXPECT_GT(used.ru_minflt, 50);
  EXPECT_LT(used.ru_minflt, 400);
}

// Runs the line in bash; returns what it writes to both streams, and its exit status.
std::pair<std::string, int> Said(const std::string& line) {
  FILE* const run = popen(("exec bash -c '" + line + "' 2>&1").c_str(), "r");
  if (run == nullptr) return {"", -1};
  std::string said;
  for (int c = fgetc(run); c != EOF; c = fgetc(run)) said += static_cast<char>(c);
  return {said, WEXITSTATUS(pclose(run))};
}

TEST(StartTest, UnderANameOfSlurmItIsThatCommand) {
  using ::testing::Pair;
  EXPECT_THAT(Said("exec -a /x/scontrol launcher/cadre show hostnames n[1-2]"),
              Pair("n1\nn2\n", 0));
  EXPECT_THAT(Said("exec -a squeue launcher/cadre --nonsense"),
              Pair(testing::StartsWith("squeue: unrecognized option "), 1));
  EXPECT_THAT(Said("launcher/cadre srun --version"), Pair(testing::StartsWith("slurm 23.02"), 0));
  EXPECT_THAT(Said("launcher/cadre help sinfo"), Pair(testing::StartsWith("Usage: sinfo"), 0));
}

// A launcher that cannot start a thread.

// Root has no limit of processes, so the stack has no memory, which is refused in the same way.
//
// Fault (input): A launcher may start no more threads (`ulimit -u`, a container's `pids.max`) -> It
// ends its workers and exits with 70, and says what to raise
TEST(ThreadRoomTest, ARefusalIsSaidWithWhatToDo) {
  FILE* const run =
      popen("ulimit -v 4000000; ulimit -s 8000000; launcher/cadre run -- /bin/true 2>&1", "r");
  ASSERT_NE(run, nullptr);
  std::string said;
  for (int c = fgetc(run); c != EOF; c = fgetc(run)) said += static_cast<char>(c);
  EXPECT_EQ(WEXITSTATUS(pclose(run)), 70);
  EXPECT_THAT(said, testing::HasSubstr("cannot start a thread"));
  EXPECT_THAT(said, testing::HasSubstr("ulimit -u"));
}

}  // namespace
}  // namespace cadre::launcher
