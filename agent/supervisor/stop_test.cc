// Stopping groups, with the real supervisor. Each test runs with cgroups where the machine has
// them, and without.
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/supervisor/processes/cgroup_files.h"
#include "agent/supervisor/processes/process_scan.h"
#include "agent/supervisor/supervisor_rig.h"
#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A grace that no test waits for.
constexpr uint32_t kLongGraceMs = 600000;

pid_t ToPid(const std::string& text) {
  pid_t pid = 0;
  EXPECT_TRUE(absl::SimpleAtoi(text, &pid)) << text;
  return pid;
}

bool Alive(pid_t pid) {
  const auto info = InspectProcess(pid);
  return info.has_value() && info->state != 'Z';
}

class StopTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { setenv("CADRE_CGROUPS", GetParam(), 1); }
  void TearDown() override { unsetenv("CADRE_CGROUPS"); }
};
INSTANTIATE_TEST_SUITE_P(Cgroups, StopTest, ::testing::Values("on", "off"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(StopTest, SaysWhyThereAreNoCgroups) {
  SupervisorRig rig;
  EXPECT_EQ(rig.ready().pid, rig.client().pid());
  EXPECT_NE(rig.ready().cgroup.empty(), rig.ready().degraded.empty());
  if (std::string(GetParam()) == "off") {
    EXPECT_THAT(rig.ready().degraded, HasSubstr("CADRE_CGROUPS"));
  }
}

TEST_P(StopTest, SendsSigtermFirst) {
  SupervisorRig rig;
  rig.Send(rig.Shell("trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.01; done"));
  rig.Lines(1);
  rig.Stop(kLongGraceMs);
  ASSERT_TRUE(rig.Exit().has_value());
  EXPECT_EQ(rig.Exit()->exit_code, 5);
  EXPECT_EQ(rig.Output(1), "up\nbye\n");
}

// A shell ends by the signal while the program that it waits for saves.
TEST_P(StopTest, WhatAScriptStartedHasTheGraceToo) {
  SupervisorRig rig;
  rig.Send(
      rig.Shell("sh -c 'trap \"sleep 0.2; echo saved; exit 0\" TERM; echo up; "
                "while :; do sleep 0.01; done'; echo never"));
  rig.Lines(1);
  rig.Stop(kLongGraceMs);
  EXPECT_EQ(rig.Exit()->signal, SIGTERM);
  EXPECT_EQ(rig.Output(1), "up\nsaved\n");
}

constexpr char kRankWithAChild[] = R"(
import os, signal, time
child = os.fork()
def save(number, frame):
  time.sleep(0.1)
  lost = os.waitpid(child, os.WNOHANG)[0] != 0
  os.write(1, b"lost\n" if lost else b"saved with its child\n")
  os._exit(0)
if child:
  for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, save)
  # By print() the signal could come amid it, and what writes has no room for a second print().
  os.write(1, b"up\n")
while True:
  time.sleep(0.01)
)";

// A data loader's process would die of it before the rank has saved.
TEST_P(StopTest, ARankThatSavesKeepsItsChildrenUntilThen) {
  for (const bool stop : {true, false}) {
    SupervisorRig rig;
    StartFrame start = rig.Shell("");
    start.argv = {"python3", "-c", kRankWithAChild};
    rig.Send(start);
    rig.Lines(1);
    if (!stop) rig.Send(SignalFrame{1, SIGUSR2});
    if (!stop) rig.Until([&] { return rig.Exit().has_value(); });
    rig.Stop(kLongGraceMs);
    EXPECT_EQ(rig.Exit()->exit_code, 0);
    EXPECT_EQ(rig.Output(1), "up\nsaved with its child\n");
  }
}

// As any wrapper that handles no signal.
TEST_P(StopTest, WhatAProgramThatSigtermKillsHasStartedGetsItThen) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("");
  start.argv = {
      "python3", "-c",
      "import subprocess; subprocess.run(['sh', '-c', 'trap \"sleep 0.2; echo saved; exit "
      "0\" TERM; echo up; while :; do sleep 0.01; done'])"};
  rig.Send(start);
  rig.Lines(1);
  rig.Stop(kLongGraceMs);
  EXPECT_EQ(rig.Exit()->signal, SIGTERM);
  EXPECT_EQ(rig.Output(1), "up\nsaved\n");
}

TEST_P(StopTest, WhatAScriptStartedIsKilledAtTheEndOfTheGrace) {
  SupervisorRig rig;
  rig.Send(rig.Shell("sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.01; done'; echo never"));
  const pid_t program = ToPid(rig.Lines(1)[0]);
  const MonoTime before = MonoNow();
  rig.Stop(100);
  EXPECT_GE(MonoNow() - before, absl::Milliseconds(100));
  EXPECT_EQ(rig.Exit()->signal, SIGTERM);
  EXPECT_FALSE(Alive(program));
}

// The others are killed with it, as they always were: it had its say.
TEST_P(StopTest, WhoEndsByItselfEndsTheGrace) {
  SupervisorRig rig;
  rig.Send(
      rig.Shell("(trap '' TERM; while :; do sleep 0.01; done) & "
                "trap 'exit 5' TERM; echo $!; while :; do sleep 0.01; done"));
  const pid_t left = ToPid(rig.Lines(1)[0]);
  rig.Stop(kLongGraceMs);
  EXPECT_EQ(rig.Exit()->exit_code, 5);
  EXPECT_FALSE(Alive(left));
}

TEST_P(StopTest, KillsAtTheEndOfTheGrace) {
  SupervisorRig rig;
  rig.Send(rig.Shell("trap '' TERM; echo up; while :; do sleep 0.01; done"));
  rig.Lines(1);
  const MonoTime before = MonoNow();
  rig.Stop(100);
  EXPECT_GE(MonoNow() - before, absl::Milliseconds(100));
  EXPECT_EQ(rig.Exit()->signal, SIGKILL);
}

TEST_P(StopTest, NoGraceKillsAtOnce) {
  SupervisorRig rig;
  rig.Send(rig.Shell("trap 'exit 5' TERM; echo up; while :; do sleep 0.01; done"));
  rig.Lines(1);
  rig.Stop(0);
  EXPECT_EQ(rig.Exit()->signal, SIGKILL);
  EXPECT_FALSE(rig.Exit()->out_of_memory);
}

TEST_P(StopTest, AGroupThatIsNotHeldAnyLongerIsKilledByItself) {
  SupervisorRig rig;
  rig.Send(rig.Shell("trap '' TERM; echo up; while :; do sleep 0.01; done"));
  rig.Lines(1);
  const MonoTime begin = BootNow();
  rig.Send(HoldFrame{1, (begin + absl::Milliseconds(50)).micros()});
  rig.Send(HoldFrame{1, (begin + absl::Milliseconds(300)).micros()});
  ASSERT_TRUE(rig.Until([&] { return rig.AllGoneCount() == 1; }));
  EXPECT_GE(BootNow() - begin, absl::Milliseconds(300));
  EXPECT_EQ(rig.Exit()->signal, SIGKILL);
}

TEST_P(StopTest, ASecondStopShortensTheGrace) {
  SupervisorRig rig;
  rig.Send(rig.Shell("trap '' TERM; echo up; while :; do sleep 0.01; done"));
  rig.Lines(1);
  rig.Send(StopFrame{1, kLongGraceMs});
  rig.Stop(0);
  EXPECT_EQ(rig.Exit()->signal, SIGKILL);
}

TEST_P(StopTest, ASecondStopDoesNotLengthenIt) {
  SupervisorRig rig;
  rig.Send(rig.Shell("trap '' TERM; echo up; while :; do sleep 0.01; done"));
  rig.Lines(1);
  rig.Send(StopFrame{1, 50});
  rig.Stop(kLongGraceMs);
  EXPECT_EQ(rig.Exit()->signal, SIGKILL);
}

TEST_P(StopTest, AStoppedWorkerActsOnSigterm) {
  SupervisorRig rig;
  rig.Send(rig.Shell("trap 'exit 5' TERM; echo up; kill -STOP $$; while :; do :; done"));
  rig.Lines(1);
  rig.Stop(kLongGraceMs);
  EXPECT_EQ(rig.Exit()->exit_code, 5);
}

TEST_P(StopTest, AGrandchildInItsOwnSessionDiesToo) {
  SupervisorRig rig;
  rig.Send(
      rig.Shell("setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.01; done' & wait"));
  const pid_t grandchild = ToPid(rig.Lines(1)[0]);
  ASSERT_TRUE(Alive(grandchild));
  rig.Stop(kLongGraceMs);
  EXPECT_FALSE(Alive(grandchild));
}

TEST_P(StopTest, WhatAFinishedWorkerLeftBehindDiesAtTheStop) {
  SupervisorRig rig;
  rig.Send(rig.Shell("mkfifo up; setsid sh -c 'echo $$; echo >up; exec sleep 1000' & read x <up"));
  const pid_t left = ToPid(rig.Lines(1)[0]);
  rig.Until([&] { return rig.Exit().has_value(); });
  EXPECT_EQ(rig.Exit()->exit_code, 0);
  EXPECT_TRUE(Alive(left)) << "a daemon may outlive its worker until the group is stopped";
  EXPECT_EQ(rig.AllGoneCount(), 0);
  rig.Stop(0);
  EXPECT_FALSE(Alive(left));
}

// Neither its cgroup nor its environment tells whose it is.
TEST_P(StopTest, WhatAFinishedWorkerLeftInItsSessionDiesAtTheStop) {
  SupervisorRig rig;
  rig.Send(rig.Shell("echo up; exec sleep 1000", 2));  // what nobody owns would be its
  rig.Lines(1, 2);
  StartFrame start = rig.Shell("");
  start.argv = {"/bin/bash", "-c", "set -m; env -i /bin/sleep 1000 & echo $!"};
  rig.Run(start);
  const pid_t left = ToPid(rig.Lines(1)[0]);
  EXPECT_TRUE(Alive(left));
  rig.Stop(0);
  EXPECT_FALSE(Alive(left));
}

// A child of this process with a number that was another one's, at the head of a session.
class Newcomer {
 public:
  // False: this machine does not let us choose a number.
  bool Come(pid_t number) {
    int up[2];
    EXPECT_EQ(pipe2(up, O_CLOEXEC), 0);
    const ScopedFd reads(up[0]);
    ScopedFd writes(up[1]);
    clone_args how = {};
    how.exit_signal = SIGCHLD;
    how.set_tid = reinterpret_cast<uint64_t>(&number);
    how.set_tid_size = 1;
    const MonoTime end = MonoNow() + kPatience;
    // Whoever had it is reported before it is reaped.
    do {
      pid_ = static_cast<pid_t>(syscall(SYS_clone3, &how, sizeof(how)));
    } while (pid_ < 0 && errno == EEXIST && MonoNow() < end);
    if (pid_ == 0) {
      if (setsid() < 0 || write(writes.get(), "u", 1) != 1) _exit(1);
      for (;;) pause();
    }
    if (pid_ < 0) return false;
    writes.Reset();
    char byte = 0;
    EXPECT_EQ(read(reads.get(), &byte, 1), 1);
    return true;
  }
  ~Newcomer() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
};

TEST_P(StopTest, WhoGotTheNumberOfAFinishedWorkerIsNoneOfItsProcesses) {
  SupervisorRig rig;
  rig.Run(rig.Shell("true"));
  const pid_t number = rig.Started()->pid;
  Newcomer newcomer;
  if (!newcomer.Come(number)) GTEST_SKIP() << "no process with this number: errno " << errno;
  ASSERT_EQ(InspectProcess(number)->session, number);
  rig.Stop(0);
  EXPECT_TRUE(Alive(number));
}

TEST_P(StopTest, TheRestOfTheGroupDiesWithTheWorker) {
  SupervisorRig rig;
  rig.Run(rig.Shell("sleep 1000 & echo $!; exit 1"));
  EXPECT_TRUE(WaitUntilDead(ToPid(rig.Lines(1)[0])));
}

TEST_P(StopTest, ATreeOfForkingProcessesDies) {
  SupervisorRig rig;
  WriteFile(rig.folder() + "/tree",
            "#!/bin/sh\n"
            "[ $1 = 0 ] && { echo leaf; exec sleep 1000; }\n"
            "setsid ./tree $(($1 - 1)) &\n"
            "./tree $(($1 - 1)) &\n"
            "wait\n",
            0755);
  rig.Send(rig.Shell("exec ./tree 5"));
  rig.Lines(32);
  // Every one of them has the mark, wherever it went.
  const auto count = [&] {
    int found = 0;
    for (pid_t pid : CgroupProcesses(rig.ready().cgroup)) found += Alive(pid) ? 1 : 0;
    return found;
  };
  if (!rig.ready().cgroup.empty()) {
    EXPECT_GE(count(), 63);
  }
  rig.Stop(0);
  EXPECT_EQ(rig.AllGoneCount(), 1);
  if (!rig.ready().cgroup.empty()) {
    EXPECT_EQ(count(), 0);
  }
  EXPECT_THAT(KillProcesses(
                  [&](const ProcessInfo& process) { return process.parent == rig.client().pid(); }),
              IsEmpty());
}

// A grandchild that is in no cgroup of ours, as with sudo where systemd gives it a session, and
// without its environment.
std::string OutOfReach(const SupervisorRig& rig) {
  const std::string leave =
      rig.ready().cgroup.empty()
          ? ""
          : absl::StrCat("echo $$ 2>/dev/null >", rig.ready().cgroup, "/../cgroup.procs; ");
  return absl::StrCat("setsid env -i /bin/sh -c '", leave, "echo $$; exec /bin/sleep 1000' & wait");
}

TEST_P(StopTest, WhatHasLeftItsCgroupDiesAtTheStop) {
  SupervisorRig rig;
  rig.Send(rig.Shell(OutOfReach(rig)));
  const pid_t left = ToPid(rig.Lines(1)[0]);
  rig.Stop(0);
  EXPECT_FALSE(Alive(left));
}

TEST_P(StopTest, WhatHasLeftItsCgroupDiesWithTheAgent) {
  SupervisorRig rig;
  rig.Send(rig.Shell(OutOfReach(rig)));
  const pid_t left = ToPid(rig.Lines(1)[0]);
  rig.Close();
  EXPECT_TRUE(WaitUntilDead(left));
}

TEST_P(StopTest, AStopIsAnsweredWhereNothingIsLeft) {
  SupervisorRig rig;
  rig.Run(rig.Shell("true"));
  rig.Stop(0);
  rig.frames.clear();
  rig.Stop(0);
  rig.Stop(0, 2);  // there never was one
}

TEST_P(StopTest, GroupsAreIndependent) {
  SupervisorRig rig;
  rig.Send(rig.Shell("setsid sh -c 'echo $$; exec sleep 1000' & wait", 2));
  const pid_t survivor = ToPid(rig.Lines(1, 2)[0]);
  rig.Send(rig.Shell("setsid sh -c 'echo $$; exec sleep 1000' & wait"));
  const pid_t victim = ToPid(rig.Lines(1)[0]);
  rig.Stop(0);
  EXPECT_FALSE(Alive(victim));
  EXPECT_TRUE(Alive(survivor));
  EXPECT_FALSE(rig.Exit(2).has_value());
  rig.Stop(0, 2);
  EXPECT_FALSE(Alive(survivor));
}

TEST_P(StopTest, SignalsReachTheGroup) {
  SupervisorRig rig;
  rig.Send(rig.Shell("trap 'echo usr1; exit 0' USR1; echo up; while :; do sleep 0.01; done"));
  rig.Lines(1);
  rig.Send(SignalFrame{99, SIGKILL});  // no such group
  rig.Send(SignalFrame{1, SIGUSR1});
  rig.Until([&] { return rig.Exit().has_value(); });
  EXPECT_EQ(rig.Output(1), "up\nusr1\n");
}

TEST_P(StopTest, TheLastGroupTakesWhatNobodyOwns) {
  SupervisorRig rig;
  rig.Send(rig.Shell(OutOfReach(rig)));
  const pid_t left = ToPid(rig.Lines(1)[0]);
  rig.Send(rig.Shell("setsid sh -c 'echo $$; exec sleep 1000' & wait", 2));
  const pid_t other = ToPid(rig.Lines(1, 2)[0]);
  rig.Stop(0);
  EXPECT_TRUE(Alive(other));
  rig.Stop(0, 2);
  EXPECT_FALSE(Alive(other));
  EXPECT_FALSE(Alive(left));
}

TEST_P(StopTest, ManyGroupsLeaveNothingBehind) {
  SupervisorRig rig;
  // One round first: what is opened once stays open.
  rig.Run(rig.Shell("true"));
  rig.Stop(0);
  const auto before = OpenDescriptors(rig.client().pid());
  constexpr uint64_t kRounds = 250;
  for (uint64_t round = 1; round < kRounds; ++round) {
    const uint64_t first = 2 * round, second = first + 1;
    for (const uint64_t group : {first, second}) {
      StartFrame start = rig.Shell("", group);
      start.argv = {"/bin/true"};
      rig.Send(start);
    }
    rig.Until([&] { return rig.Exit(first) && rig.Exit(second); });
    EXPECT_EQ(rig.Exit(first)->exit_code, 0);
    for (const uint64_t group : {first, second}) rig.Stop(0, group);
    rig.frames.clear();
  }
  EXPECT_EQ(OpenDescriptors(rig.client().pid()), before);
  if (!rig.ready().cgroup.empty()) {
    EXPECT_THAT(Subdirectories(rig.ready().cgroup), IsEmpty());
  }
}

}  // namespace
}  // namespace cadre::supervisor
