// How workers start and how they end, with the real supervisor.
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "agent/supervisor/supervisor_rig.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(WorkerTest, ReportsTheExitCode) {
  SupervisorRig rig;
  const ExitedFrame exited = rig.Run(rig.Shell("exit 7"));
  ASSERT_TRUE(rig.Started().has_value());
  EXPECT_EQ(exited.pid, rig.Started()->pid);
  EXPECT_EQ(exited.exit_code, 7);
  EXPECT_EQ(exited.signal, 0);
  EXPECT_EQ(exited.exec_errno, 0);
  EXPECT_EQ(exited.exec_step, "");
  EXPECT_FALSE(exited.out_of_memory);
}

// A shell makes nonsense of it, with whatever its bytes happen to say.
TEST(WorkerTest, ADamagedProgramIsNoScript) {
  using namespace std::string_literals;
  SupervisorRig rig;
  uint64_t group = 0;
  for (const std::string& content :
       {"\177ELF"s, "\177ELF\2\1\1\0\necho ran\n"s, "\xca\xfe\0\0\necho ran\n"s}) {
    StartFrame start = rig.Shell("", ++group);
    WriteFile(rig.folder() + "/program", content, 0755);
    start.argv = {rig.folder() + "/program"};
    rig.Send(start);
    rig.Until([&] { return rig.Exit(group).has_value(); });
    EXPECT_EQ(rig.Exit(group)->exec_errno, ENOEXEC);
    EXPECT_EQ(rig.Output(1, group), "");
  }
  StartFrame script = rig.Shell("", ++group);
  WriteFile(rig.folder() + "/program", "echo ran\n", 0755);
  script.argv = {rig.folder() + "/program"};
  rig.Send(script);
  rig.Until([&] { return rig.Exit(group).has_value(); });
  EXPECT_EQ(rig.Output(1, group), "ran\n");
}

TEST(WorkerTest, ReportsTheSignal) {
  SupervisorRig rig;
  const ExitedFrame exited = rig.Run(rig.Shell("kill -KILL $$"));
  EXPECT_EQ(exited.signal, SIGKILL);
  EXPECT_EQ(exited.exit_code, 0);
  EXPECT_FALSE(exited.core_dumped);
  EXPECT_FALSE(exited.out_of_memory);
}

TEST(WorkerTest, SignalDispositionsAndMaskAreFresh) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("");
  start.argv = {"cat", "/proc/self/status"};
  rig.Run(start);
  EXPECT_THAT(rig.Output(1), HasSubstr("\nSigBlk:\t0000000000000000\n"));
  EXPECT_THAT(rig.Output(1), HasSubstr("\nSigIgn:\t0000000000000000\n"));
}

TEST(WorkerTest, InASlurmStep_ItsWarningIsIgnored) {
  setenv("SLURM_STEP_ID", "0", 1);
  SupervisorRig rig;
  unsetenv("SLURM_STEP_ID");
  const ExitedFrame exited = rig.Run(rig.Shell("kill -USR1 $$; exit 3"));
  EXPECT_EQ(exited.signal, 0);
  EXPECT_EQ(exited.exit_code, 3);
}

TEST(WorkerTest, ProgramThatDoesNotExist) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("");
  start.argv = {"no-such-program-anywhere"};
  const ExitedFrame exited = rig.Run(start);
  EXPECT_EQ(exited.exec_step, "exec");
  EXPECT_EQ(exited.exec_errno, ENOENT);
  EXPECT_EQ(exited.exit_code, 127);
  EXPECT_FALSE(rig.Started().has_value());
}

TEST(WorkerTest, ProgramThatMayNotBeRun) {
  SupervisorRig rig;
  WriteFile(rig.folder() + "/data", "not a program", 0644);
  StartFrame start = rig.Shell("");
  start.argv = {"./data"};
  const ExitedFrame exited = rig.Run(start);
  EXPECT_EQ(exited.exec_step, "exec");
  EXPECT_EQ(exited.exec_errno, EACCES);
  EXPECT_EQ(exited.exit_code, 126);
}

TEST(WorkerTest, ADirectoryIsNoProgram) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("");
  start.argv = {rig.folder()};
  const ExitedFrame exited = rig.Run(start);
  EXPECT_EQ(exited.exec_step, "exec");
  EXPECT_EQ(exited.exec_errno, EISDIR);
  EXPECT_EQ(exited.exit_code, 126);
}

TEST(WorkerTest, NoCommandAtAll) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("");
  start.argv.clear();
  const ExitedFrame exited = rig.Run(start);
  EXPECT_EQ(exited.exec_step, "exec");
  EXPECT_EQ(exited.exec_errno, ENOENT);
  EXPECT_EQ(exited.pid, 0);
}

TEST(WorkerTest, ScriptWithoutInterpreterRunsUnderTheShell) {
  SupervisorRig rig;
  WriteFile(rig.folder() + "/script", "echo \"$0 $1\"\n", 0755);
  StartFrame start = rig.Shell("");
  start.argv = {"./script", "one word"};
  EXPECT_EQ(rig.Run(start).exit_code, 0);
  EXPECT_EQ(rig.Output(1), "./script one word\n");
}

TEST(WorkerTest, WorkingDirectoryMustExist) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("pwd");
  start.working_dir = rig.folder() + "/absent";
  const ExitedFrame exited = rig.Run(start);
  EXPECT_EQ(exited.exec_step, "chdir");
  EXPECT_EQ(exited.exec_errno, ENOENT);
  EXPECT_EQ(rig.Output(1), "");
}

TEST(WorkerTest, LogThatCannotBeOpened) {
  SupervisorRig rig;
  WriteFile(rig.folder() + "/file", "");
  StartFrame start = rig.Shell("true");
  start.stdout_path = rig.folder() + "/file/stdout.log";
  const ExitedFrame exited = rig.Run(start);
  EXPECT_EQ(exited.exec_step, "open log");
  EXPECT_EQ(exited.exec_errno, ENOTDIR);
}

TEST(WorkerTest, PathIsTheWorkersOwn) {
  SupervisorRig rig;
  WriteFile(rig.folder() + "/only-here", "#!/bin/sh\necho found\n", 0755);
  StartFrame start = rig.Shell("");
  start.argv = {"only-here"};
  start.environment = {"PATH=/nowhere:" + rig.folder()};
  EXPECT_EQ(rig.Run(start).exit_code, 0);
  EXPECT_EQ(rig.Output(1), "found\n");
}

TEST(WorkerTest, EnvironmentIsCompleteAndNothingElse) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("");
  start.argv = {"env"};
  start.environment.push_back("RANK=3");
  start.environment.push_back("CADRE_PROGRESS_FD=77");
  rig.Run(start);
  const std::string text = rig.Output(1);
  EXPECT_THAT(text, HasSubstr("\nRANK=3\n"));
  EXPECT_THAT(text, HasSubstr("\nCADRE_PROGRESS_FD=3\n"));
  EXPECT_THAT(text, Not(HasSubstr("CADRE_PROGRESS_FD=77")));
  EXPECT_THAT(text, HasSubstr("CADRE_SUPERVISED_BY="));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
}

TEST(WorkerTest, InheritsStandardStreamsAndProgressOnly) {
  // A descriptor that the agent left open without O_CLOEXEC must not get through either.
  const int stray = dup(STDERR_FILENO);
  ASSERT_GE(stray, 0);
  SupervisorRig rig;
  // A second worker is there when the third starts: its pipes must stay its own.
  for (const uint64_t group : {1u, 2u}) {
    StartFrame waiting = rig.Shell("", group);
    waiting.argv = {"ls", "/proc/self/fd"};
    rig.Run(waiting);
    // ls itself has the directory open as 4.
    EXPECT_EQ(rig.Output(1, group), "0\n1\n2\n3\n4\n");
    // Only what has spoken is past its own opening of libraries.
    waiting = rig.Shell("echo up; while :; do sleep 1000; done", group + 10);
    rig.Send(waiting);
    rig.Lines(1, waiting.group);
    EXPECT_THAT(OpenDescriptors(rig.Started(waiting.group)->pid), ElementsAre(0, 1, 2, 3));
  }
  close(stray);
}

TEST(WorkerTest, LeadsASessionOfItsOwn) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("");
  start.argv = {"sleep", "1000"};
  rig.Send(start);
  rig.Until([&] { return rig.Started().has_value(); });
  EXPECT_EQ(getsid(rig.Started()->pid), rig.Started()->pid);
  EXPECT_NE(getsid(rig.client().pid()), getsid(0));
}

TEST(WorkerTest, DescriptorLimitIsTheAgents) {
  SupervisorRig rig;
  rig.Run(rig.Shell("ulimit -Sn"));
  EXPECT_EQ(rig.Output(1), std::to_string(sysconf(_SC_OPEN_MAX)) + "\n");
}

TEST(WorkerTest, IsKilledBeforeItsSupervisorWhereMemoryRunsOut) {
  SupervisorRig rig;
  rig.Run(rig.Shell("cat /proc/self/oom_score_adj /proc/$PPID/oom_score_adj"));
  int own = 0, supervisors = 0;
  const std::vector<std::string> lines = absl::StrSplit(rig.Output(1), '\n');
  ASSERT_GE(lines.size(), 2u);
  ASSERT_TRUE(absl::SimpleAtoi(lines[0], &own) && absl::SimpleAtoi(lines[1], &supervisors));
  EXPECT_EQ(own, std::min(std::max(supervisors, 0) + 100, 1000));
}

TEST(WorkerTest, IsBoundToItsCpus) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("grep Cpus_allowed_list /proc/self/status");
  start.cpus = {0};
  EXPECT_EQ(rig.Run(start).exit_code, 0);
  EXPECT_EQ(rig.Output(1), "Cpus_allowed_list:\t0\n");
}

TEST(WorkerTest, CpuThatDoesNotExist) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("true");
  start.cpus = {60000};
  const ExitedFrame exited = rig.Run(start);
  EXPECT_EQ(exited.exec_step, "bind cpus");
  EXPECT_EQ(exited.exec_errno, EINVAL);
}

TEST(WorkerTest, ErrorFileIsRemovedBeforeAndReadAfter) {
  SupervisorRig rig;
  StartFrame start =
      rig.Shell("test -e deep/er/error.json && exit 9; echo '{}' >deep/er/error.json");
  start.error_file = rig.folder() + "/deep/er/error.json";
  EXPECT_EQ(rig.Run(start).error_json, "{}\n");
  start.group = 2;
  const ExitedFrame second = rig.Run(start);
  EXPECT_EQ(second.exit_code, 0) << "the old error file was still there";
  start.group = 3;
  start.argv[2] = "true";
  EXPECT_EQ(rig.Run(start).error_json, "");
}

TEST(WorkerTest, ErrorFileIsReadToItsLimit) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("head -c 100000 /dev/zero >error.json");
  start.error_file = rig.folder() + "/error.json";
  EXPECT_EQ(rig.Run(start).error_json.size(), 64u << 10);
}

TEST(WorkerTest, ErrorFileThatIsAFifoHoldsNobodyUp) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("mkfifo error.json");
  start.error_file = rig.folder() + "/error.json";
  EXPECT_EQ(rig.Run(start).error_json, "");
}

TEST(WorkerTest, TheSameWorkerIsNotStartedTwice) {
  SupervisorRig rig;
  rig.Send(rig.Shell("echo once; exec sleep 1000"));
  rig.Lines(1);
  rig.Send(rig.Shell("echo twice"));
  EXPECT_EQ(rig.Run(rig.Shell("true", 2)).exit_code, 0);
  EXPECT_EQ(rig.Output(1), "once\n");
}

}  // namespace
}  // namespace cadre::supervisor
