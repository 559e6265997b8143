// How workers start and end, standby processes, and limits of groups, with the real supervisor.
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/supervisor/output.h"
#include "agent/supervisor/processes/cgroup_limits.h"
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

// A shell would execute whatever the file's bytes happen to mean.
//
// Fault (input): A program's file is damaged or of another machine's architecture -> It is not run
// as a shell script: the start fails with "Exec format error"
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
  // A descriptor that the agent left open without O_CLOEXEC must not be inherited either.
  const int stray = dup(STDERR_FILENO);
  ASSERT_GE(stray, 0);
  SupervisorRig rig;
  // A second worker exists when the third starts: its pipes must stay its own.
  for (const uint64_t group : {1u, 2u}) {
    StartFrame waiting = rig.Shell("", group);
    waiting.argv = {"ls", "/proc/self/fd"};
    rig.Run(waiting);
    // ls itself has the directory open as 4.
    EXPECT_EQ(rig.Output(1, group), "0\n1\n2\n3\n4\n");
    // Once it has printed, it has finished loading its libraries.
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

// Standby processes.

constexpr uint64_t kStandby = 5;

class StandbyTest : public ::testing::Test {
 protected:
  // A standby that makes a file when it waits, prints its assignment, and keeps running.
  StartFrame Standby(uint64_t group = kStandby) {
    StartFrame start = rig_.Shell(
        absl::StrCat("echo loaded; printf x >&$CADRE_STANDS_BY; touch waits-", group,
                     "; tr '\\0' '\\n' <&$CADRE_STANDS_BY; echo placed; exec sleep 1000"),
        group);
    start.stands_by = true;
    start.stdout_path = absl::StrCat(rig_.folder(), "/standby_", group, "/log");
    return start;
  }
  void AwaitWaits(uint64_t group = kStandby) {
    const std::string path = absl::StrCat(rig_.folder(), "/waits-", group);
    ASSERT_TRUE(rig_.UntilFiles([&] { return access(path.c_str(), F_OK) == 0; }));
  }
  StartFrame Worker(uint64_t group) {
    StartFrame start = rig_.Shell("echo new; exec sleep 1000", group);
    start.stdout_path = absl::StrCat(rig_.folder(), "/rank_", group, "/log");
    start.assignment = {"RANK=3", "WORLD_SIZE=4"};
    return start;
  }
  pid_t Pid(uint64_t group) {
    rig_.Until([&] { return rig_.Started(group).has_value(); });
    return rig_.Started(group).value_or(StartedFrame{}).pid;
  }

  SupervisorRig rig_;
};

TEST_F(StandbyTest, OneThatWaitsGetsThePlace) {
  rig_.Send(Standby());
  const pid_t pid = Pid(kStandby);
  AwaitWaits();
  rig_.Send(Worker(9));
  EXPECT_EQ(Pid(9), pid);
  EXPECT_EQ(rig_.Started(9)->was, kStandby);
  // Its output before the assignment is in the worker's log below, and is not forwarded.
  rig_.Until([&] { return rig_.Output(kStdoutStream, 9) == "RANK=3\nWORLD_SIZE=4\n\nplaced\n"; });
  EXPECT_EQ(rig_.Output(kStdoutStream, kStandby), "");
  // It is a group like any other.
  rig_.Stop(0, 9);
  EXPECT_EQ(rig_.Exit(9)->signal, SIGKILL);
  EXPECT_EQ(rig_.Exit(9)->pid, pid);
  // Files are written by the time the exit is reported.
  EXPECT_EQ(ReadFile(rig_.folder() + "/rank_9/log"), "loaded\nRANK=3\nWORLD_SIZE=4\n\nplaced\n");
  EXPECT_NE(access((rig_.folder() + "/standby_5/log").c_str(), F_OK), 0);
}

TEST_F(StandbyTest, ItsOutputGoesToTheFileThatTheUserNamed) {
  rig_.Send(Standby());
  AwaitWaits();
  StartFrame worker = Worker(9);
  worker.stdout_file.path = rig_.folder() + "/out";
  rig_.Send(worker);
  rig_.Until([&] { return rig_.Output(kStdoutStream, 9) == "RANK=3\nWORLD_SIZE=4\n\nplaced\n"; });
  rig_.Stop(0, 9);
  EXPECT_EQ(ReadFile(worker.stdout_path), "RANK=3\nWORLD_SIZE=4\n\nplaced\n");
  EXPECT_EQ(ReadFile(rig_.folder() + "/out"), ReadFile(worker.stdout_path));
  EXPECT_EQ(ReadFile(rig_.folder() + "/standby_5/log"), "loaded\n");
}

TEST_F(StandbyTest, OneThatIsStillLoadingDoesNot) {
  StartFrame slow = Standby();
  slow.argv[2] = "exec sleep 1000";
  rig_.Send(slow);
  const pid_t pid = Pid(kStandby);
  rig_.Send(Worker(9));
  EXPECT_NE(Pid(9), pid);
  EXPECT_EQ(rig_.Started(9)->was, 0u);
  EXPECT_FALSE(rig_.Exit(kStandby).has_value());
}

TEST_F(StandbyTest, EachGetsOnePlace_AndOnlyWhereThereIsAnAssignment) {
  rig_.Send(Standby());
  rig_.Send(Standby(6));
  AwaitWaits();
  AwaitWaits(6);
  StartFrame other = Worker(8);
  other.assignment.clear();
  rig_.Send(other);
  for (const uint64_t group : {9, 10, 11}) rig_.Send(Worker(group));
  // A new process and a former standby are ready in any order.
  for (const uint64_t group : {8, 9, 10, 11}) Pid(group);
  EXPECT_EQ(rig_.Started(8)->was, 0u);
  EXPECT_EQ(rig_.Started(9)->was, 5u);
  EXPECT_EQ(rig_.Started(10)->was, 6u);
  EXPECT_EQ(rig_.Started(11)->was, 0u);
}

TEST_F(StandbyTest, OneThatDiesIsReported) {
  rig_.Send(Standby());
  AwaitWaits();
  ASSERT_EQ(kill(Pid(kStandby), SIGKILL), 0);
  rig_.Until([&] { return rig_.Exit(kStandby).has_value(); });
  EXPECT_EQ(rig_.Exit(kStandby)->signal, SIGKILL);
  rig_.Stop(0, kStandby);
  rig_.Send(Worker(9));
  Pid(9);
  EXPECT_EQ(rig_.Started(9)->was, 0u);
}

TEST_F(StandbyTest, ItHasTheSocketAndNothingElse) {
  StartFrame start = Standby();
  start.argv = {"ls", "/proc/self/fd"};
  rig_.Run(start);
  // ls itself has the directory open as 5.
  EXPECT_EQ(ReadFile(start.stdout_path), "0\n1\n2\n3\n4\n5\n");
  EXPECT_EQ(rig_.Run(rig_.Shell("test -z \"$CADRE_STANDS_BY\"", 2)).exit_code, 0);
}

// The last other group ends as if the standby did not exist: leftovers count as that group's.
TEST_F(StandbyTest, ItIsNotInTheWayOfTheLastGroup) {
  rig_.Send(Standby());
  AwaitWaits();
  rig_.Send(rig_.Shell("setsid env -i /bin/sh -c 'echo $$; exec /bin/sleep 1000' & wait", 1));
  const std::string left = rig_.Lines(1)[0];
  rig_.Stop(0);
  EXPECT_NE(access(absl::StrCat("/proc/", left).c_str(), F_OK), 0);
  EXPECT_FALSE(rig_.Exit(kStandby).has_value());
  EXPECT_EQ(kill(Pid(kStandby), 0), 0);
}

// Limits of groups, with the real kernel. On a machine that cannot set them, tests are skipped with
// the reason.

// Device numbers that exist on every machine, in place of a GPU's.
constexpr uint32_t kMemoryMajor = 1;
constexpr uint32_t kZeroMinor = 5;
constexpr uint32_t kFullMinor = 7;
constexpr uint32_t kNobody = 65534;
constexpr uint64_t kMemoryLimit = 64 << 20;

class ContainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs to be root";
    if (rig_.ready().cgroup.empty()) GTEST_SKIP() << rig_.ready().degraded;
    const std::string why_not = FindUnsupportedLimits().devices;
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    ASSERT_EQ(chmod(rig_.folder().c_str(), 0755), 0);
    MakeNode("zero", kZeroMinor);
    MakeNode("full", kFullMinor);
  }
  void MakeNode(const std::string& name, uint32_t minor) const {
    ASSERT_EQ(
        mknod((rig_.folder() + "/" + name).c_str(), S_IFCHR | 0666, makedev(kMemoryMajor, minor)),
        0);
    ASSERT_EQ(chmod((rig_.folder() + "/" + name).c_str(), 0666), 0);
  }
  // Runs as another user, to whom the cgroup is delegated.
  StartFrame Contained(const std::string& script, std::vector<DeviceRule> devices = {}) {
    StartFrame start = rig_.Shell("");
    start.argv = {
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "/bin/sh",
        "-c",
        "cg=$(echo /sys/fs/cgroup*/unified /sys/fs/cgroup | tr ' ' '\\n' | while read m; do "
        "p=$m$(sed -n 's/^0:://p' /proc/self/cgroup); [ -e $p/cgroup.kill ] && echo $p; "
        "done | head -n 1); " +
            script};
    start.containment = {true, kNobody, kNobody, std::move(devices)};
    return start;
  }

  SupervisorRig rig_;
};

// Fault (queue): A job opens a GPU that it was not given, also through a device node of its own ->
// `open` fails with `EPERM`
TEST_F(ContainTest, ADeviceThatWasNotGivenCannotBeOpened) {
  constexpr char kTry[] =
      "for d in zero full; do (: <$d) && echo $d opens || echo $d does not; done";
  rig_.Run(Contained(kTry, {{kMemoryMajor, kFullMinor, kFullMinor, true},
                            {kMemoryMajor, kZeroMinor, kFullMinor, false}}));
  EXPECT_EQ(rig_.Output(1), "zero does not\nfull opens\n");
  EXPECT_TRUE(absl::StrContains(rig_.Output(2), "Operation not permitted")) << rig_.Output(2);
}

// Fault (queue): A job opens a GPU that it was not given, from a cgroup that it made below its own
// -> `open` fails with `EPERM`
TEST_F(ContainTest, NorCanItBeOpenedFromACgroupBelow) {
  const ExitedFrame exited = rig_.Run(
      Contained("mkdir $cg/below && echo $$ >$cg/below/cgroup.procs && exec sh -c ': <zero'",
                {{kMemoryMajor, kZeroMinor, kZeroMinor, false}}));
  EXPECT_NE(exited.exit_code, 0);
  EXPECT_TRUE(absl::StrContains(rig_.Output(2), "Operation not permitted")) << rig_.Output(2);
}

TEST_F(ContainTest, AnotherGroupIsHeldToNothing) {
  rig_.Send(Contained("exec sleep 600", {{kMemoryMajor, kZeroMinor, kZeroMinor, false}}));
  const ExitedFrame exited = rig_.Run(rig_.Shell(": <zero", 2));
  EXPECT_EQ(exited.exit_code, 0) << rig_.Output(2, 2);
}

// Fault (queue): A job's user moves processes out of the job's cgroup, or writes its limits -> The
// kernel refuses it
TEST_F(ContainTest, ItsUserMayDivideItsCgroupAndNotLeaveIt) {
  rig_.Run(
      Contained("mkdir $cg/below && echo $$ >$cg/below/cgroup.procs && echo divided; "
                "(echo $$ >$cg/../cgroup.procs) 2>/dev/null || echo stays; "
                "mkdir $cg/../beside 2>/dev/null || echo alone; "
                "for f in cgroup.max.descendants memory.max memory.swap.max pids.max; do "
                "[ -w $cg/$f ] && echo can write $f; done; rmdir $cg 2>/dev/null || echo there"));
  EXPECT_THAT(rig_.Lines(4), ElementsAre("divided", "stays", "alone", "there"));
}

TEST_F(ContainTest, ItsUserMakesNoCgroupsWithoutEnd) {
  rig_.Run(
      Contained("d=$cg; i=0; while mkdir $d/d 2>/dev/null; do d=$d/d; i=$((i+1)); done; echo $i"));
  EXPECT_EQ(rig_.Output(1), "32\n");
}

// Fault (queue): A submitted job starts processes without end -> It may have 32,768 on a node; then
// its `fork` fails
TEST_F(ContainTest, ProcessesAreNotMoreThanItsLimit) {
  const std::string why_not = FindUnsupportedLimits().pids;
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  StartFrame start = Contained(
      "[ -e $cg/pids.max ] || exit 77; "
      "for i in 1 2 3 4 5 6 7 8 9; do sleep 600 & done; wait");
  start.containment.max_pids = 6;
  const ExitedFrame exited = rig_.Run(start);
  if (exited.exit_code == 77) GTEST_SKIP() << "others are in the cgroup of this test";
  EXPECT_NE(exited.exit_code, 0);
  EXPECT_THAT(rig_.Output(2), HasSubstr("fork"));
}

// Fault (queue): A submitted job takes more than `memory_per_worker` gives it on a node, or a
// container more than its limit -> The kernel kills one of the job's own workers and no other
// process
TEST_F(ContainTest, WhoTakesMoreMemoryThanItsLimitIsKilled) {
  const std::string why_not = FindUnsupportedLimits().memory;
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  // tail keeps a line without an end in memory.
  StartFrame start = Contained("[ -e $cg/memory.max ] || exit 77; exec tail /dev/zero");
  start.containment.memory_bytes = kMemoryLimit;
  const ExitedFrame exited = rig_.Run(start);
  if (exited.exit_code == 77) GTEST_SKIP() << "others are in the cgroup of this test";
  EXPECT_EQ(exited.signal, SIGKILL);
  EXPECT_TRUE(exited.out_of_memory);
  EXPECT_EQ(exited.memory_limit, 0u) << "not this supervisor's own";
}

// Run as a launcher's supervisor, within the limit.
TEST(WithinALimit, DISABLED_ItIsNamed) {
  SupervisorRig rig;
  const ExitedFrame exited = rig.Run(rig.Shell("exec tail /dev/zero"));
  EXPECT_EQ(exited.signal, SIGKILL);
  EXPECT_TRUE(exited.out_of_memory);
  EXPECT_EQ(exited.memory_limit, kMemoryLimit);
}

TEST_F(ContainTest, TheSupervisorOfALauncherNamesTheLimit) {
  const std::string why_not = FindUnsupportedLimits().memory;
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  StartFrame start =
      Contained(absl::StrCat("[ -e $cg/memory.max ] || exit 77; exec ",
                             std::filesystem::read_symlink("/proc/self/exe").string(),
                             " --gtest_also_run_disabled_tests --gtest_filter=WithinALimit.*"));
  start.environment.push_back(absl::StrCat(
      "CADRE_SUPERVISOR=", std::filesystem::absolute(getenv("CADRE_SUPERVISOR")).string()));
  start.environment.push_back("TEST_TMPDIR=/tmp");
  // Bazel's directory may not be accessible to others, so it runs as root, in the delegated cgroup.
  start.argv.erase(start.argv.begin(), start.argv.end() - 3);
  start.containment.memory_bytes = kMemoryLimit;
  const ExitedFrame exited = rig_.Run(start);
  if (exited.exit_code == 77) GTEST_SKIP() << "others are in the cgroup of this test";
  EXPECT_EQ(exited.exit_code, 0) << rig_.Output(1) << rig_.Output(2);
}

// The supervisor of a launcher that runs there makes its own cgroups below.
TEST_F(ContainTest, WhatItsUserMadeBelowGoesWithIt) {
  rig_.Send(
      Contained("mkdir -p $cg/a/b && (echo 0 >$cg/a/b/cgroup.procs; exec sleep 600 >&-) & "
                "until [ -n \"$(cat $cg/a/b/cgroup.procs 2>/dev/null)\" ]; do :; done; "
                "echo $cg; exec sleep 600"));
  const std::vector<std::string> lines = rig_.Lines(1);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(access(lines[0].c_str(), F_OK), 0);
  rig_.Stop();
  rig_.Close();
  EXPECT_NE(access(lines[0].c_str(), F_OK), 0);
}

}  // namespace
}  // namespace cadre::supervisor
