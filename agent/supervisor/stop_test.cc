// Stopping groups, processes that SIGKILL does not end, and holds, with the real supervisor. Most
// tests run with cgroups if the machine has them, and without.
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/supervisor/processes/cgroups.h"
#include "agent/supervisor/processes/kernel_files.h"
#include "agent/supervisor/processes/process_scan.h"
#include "agent/supervisor/supervisor_rig.h"
#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cgroups.h"

namespace cadre::supervisor {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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

// A shell dies of the signal while the program that it waits for saves its state.
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

// A rank that handles signals and has a child that does not. On a signal it waits for a byte from
// the pipe argv[1], and then asks its child for a byte, which a child with a pending signal can no
// longer send.
constexpr char kRankWithAChild[] = R"(
import os, signal, socket, sys
rank, child = socket.socketpair()
if os.fork() == 0:
  rank.close()
  while child.recv(1):
    child.send(b"x")
  signal.pause()
child.close()
come, came = os.pipe()
os.set_blocking(came, False)
signal.set_wakeup_fd(came)
for number in (signal.SIGTERM, signal.SIGUSR2):
  signal.signal(number, lambda number, frame: None)
go = os.open(sys.argv[1], os.O_RDWR)
os.write(1, b"up\n")
os.read(come, 1)
os.read(go, 1)
try:
  rank.send(b"x")
  lost = rank.recv(1) != b"x"
except OSError:
  lost = True
os.write(1, b"lost\n" if lost else b"saved with its child\n")
os._exit(0)
)";

// If its data loader's process died of the signal, a rank could not save its state.
//
// Fault (worker): A rank with data loaders saves on SIGTERM -> Its data loaders are not signalled
// until the rank has ended
TEST_P(StopTest, ARankThatSavesKeepsItsChildrenUntilThen) {
  for (const bool stop : {true, false}) {
    SupervisorRig rig;
    const std::string go = rig.folder() + "/go";
    ASSERT_EQ(mkfifo(go.c_str(), 0600), 0);
    const ScopedFd goes(open(go.c_str(), O_RDWR | O_CLOEXEC));
    StartFrame start = rig.Shell("");
    start.argv = {"python3", "-c", kRankWithAChild, go};
    rig.Send(start);
    rig.Lines(1);
    if (stop) {
      rig.Send(StopFrame{1, kLongGraceMs});
    } else {
      rig.Send(SignalFrame{1, SIGUSR2});
    }
    // The supervisor handles frames in order, so it has sent its signals when this ends.
    rig.Run(rig.Shell("true", 2));
    ASSERT_EQ(write(goes.get(), "x", 1), 1);
    rig.Until([&] { return rig.Exit().has_value(); });
    if (!stop) rig.Stop(kLongGraceMs);
    rig.Until([&] { return rig.AllGoneCount() > 0; });
    EXPECT_EQ(rig.Exit()->exit_code, 0);
    EXPECT_EQ(rig.Output(1), "up\nsaved with its child\n");
  }
}

// As any wrapper that handles no signal.
//
// Fault (worker): SIGTERM kills a wrapper around the program -> The program that it started then
// gets SIGTERM and the rest of the grace
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

// Its other processes are killed with it, since it has exited by itself.
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

// Neither its cgroup nor its environment shows to which group it belongs.
//
// Fault (worker): A rank that ended early left processes in its session -> They are killed when the
// generation is stopped
TEST_P(StopTest, WhatAFinishedWorkerLeftInItsSessionDiesAtTheStop) {
  SupervisorRig rig;
  // Unattributed processes would count as this group's.
  rig.Send(rig.Shell("echo up; exec sleep 1000", 2));
  rig.Lines(1, 2);
  StartFrame start = rig.Shell("");
  start.argv = {"/bin/bash", "-c", "set -m; env -i /bin/sleep 1000 & echo $!"};
  rig.Run(start);
  const pid_t left = ToPid(rig.Lines(1)[0]);
  EXPECT_TRUE(Alive(left));
  rig.Stop(0);
  EXPECT_FALSE(Alive(left));
}

// A child of this process that reuses another process's number and leads a session.
class Newcomer {
 public:
  // Returns false if this machine does not allow choosing a pid.
  bool Come(pid_t number) {
    int up[2];
    EXPECT_EQ(pipe2(up, O_CLOEXEC), 0);
    const ScopedFd reads(up[0]);
    ScopedFd writes(up[1]);
    clone_args how = {};
    how.exit_signal = SIGCHLD;
    how.set_tid = reinterpret_cast<uint64_t>(&number);
    how.set_tid_size = 1;
    const MonoTime end = MonoNow() + kRigTimeout;
    // The earlier process is reported before it is reaped, so its number may still be taken.
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

// Fault (worker): A rank ends early, and an unrelated process gets its PID and begins a session ->
// Stopping the generation leaves that session alone, also without cgroups
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
  // All of them have the marker, wherever they have moved.
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

// A grandchild that is in none of our cgroups, as with sudo if systemd gives it a session, and
// without its environment.
std::string OutOfReach(const SupervisorRig& rig) {
  const std::string leave =
      rig.ready().cgroup.empty()
          ? ""
          : absl::StrCat("echo $$ 2>/dev/null >", rig.ready().cgroup, "/../cgroup.procs; ");
  return absl::StrCat("setsid env -i /bin/sh -c '", leave, "echo $$; exec /bin/sleep 1000' & wait");
}

// Fault (worker): A process that a worker started has left the worker's cgroup, as `sudo` and `su`
// do under systemd -> It is killed with its worker's generation
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
  rig.Stop(0, 2);  // it never existed
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

// Fault (queue): A batch job's script is sent a signal that the program which it runs does not
// handle -> The script alone gets it
TEST_P(StopTest, ASignalForAShellAloneDoesNotReachWhatItRuns) {
  SupervisorRig rig;
  // The status tells of which signal its program has died.
  rig.Send(
      rig.Shell("trap 'kill -9 $!; wait $!; echo $?; exit 0' USR1; sleep 1000 & echo up; "
                "while :; do sleep 0.01; done"));
  rig.Lines(1);
  rig.Send(SignalFrame{1, SIGUSR1, /*process_only=*/true});
  rig.Until([&] { return rig.Exit().has_value(); });
  EXPECT_EQ(rig.Output(1), "up\n137\n");
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
  // One warm-up round: descriptors that are opened once stay open.
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

// Processes that SIGKILL does not end, with the freezer of cgroup v1.

class RemainsTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto freezer = Freezer::Make();
    if (!freezer.ok()) GTEST_SKIP() << freezer.status();
    freezer_ = *std::move(freezer);
    StartSupervisor();
  }
  void StartSupervisor() {
    setenv("CADRE_CGROUPS", GetParam(), 1);
    rig_ = std::make_unique<SupervisorRig>();
    unsetenv("CADRE_CGROUPS");
  }

  // Starts the script, and freezes the process whose pid it prints.
  pid_t StartFrozen(const std::string& script) {
    rig_->Send(rig_->Shell(script));
    pid_t pid = 0;
    EXPECT_TRUE(absl::SimpleAtoi(rig_->Lines(1)[0], &pid));
    EXPECT_OK(freezer_->Freeze(pid));
    return pid;
  }
  // The newest report, once there is one.
  std::optional<RemainsFrame> NextRemains() {
    std::optional<RemainsFrame> found;
    rig_->Until([&] {
      for (const Frame& frame : rig_->frames) {
        if (const auto* remains = std::get_if<RemainsFrame>(&frame)) found = *remains;
      }
      return found.has_value();
    });
    return found;
  }
  static void ExpectNames(pid_t pid, const std::optional<RemainsFrame>& remains) {
    ASSERT_TRUE(remains.has_value());
    EXPECT_EQ(remains->group, 1u);
    ASSERT_EQ(remains->processes.size(), 1u);
    EXPECT_EQ(remains->processes[0].pid, pid);
    EXPECT_EQ(remains->processes[0].state, 'D');
    EXPECT_THAT(remains->processes[0].kernel_function, Not(IsEmpty()));
  }

  std::unique_ptr<SupervisorRig> rig_;
  // Thaws before the supervisor is destroyed.
  std::unique_ptr<Freezer> freezer_;
};
INSTANTIATE_TEST_SUITE_P(Cgroups, RemainsTest, ::testing::Values("on", "off"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(RemainsTest, AreReportedAfterFiveSeconds_AndAwaited) {
  const pid_t pid = StartFrozen("echo $$; exec sleep 1000");
  rig_->Send(rig_->Shell("echo up; exec sleep 1000", 2));
  rig_->Lines(1, 2);
  const MonoTime killed = MonoNow();
  rig_->Send(StopFrame{1, 0});
  ExpectNames(pid, NextRemains());
  EXPECT_GE(MonoNow() - killed, absl::Seconds(5));
  EXPECT_FALSE(rig_->Exit().has_value());
  EXPECT_EQ(rig_->AllGoneCount(), 0);
  // Other groups are not affected.
  rig_->Stop(0, 2);
  rig_->frames.clear();
  // A further Stop repeats the report.
  rig_->Send(StopFrame{1, 0});
  ExpectNames(pid, NextRemains());
  ASSERT_OK(freezer_->Thaw());
  rig_->Until([&] { return rig_->AllGoneCount() == 1; });
  EXPECT_EQ(rig_->Exit()->signal, SIGKILL);
}

// It is dead, but its tracer does not wait for it.
//
// Fault (worker): A killed process is dead but not reaped yet -> It is not reported as surviving
// SIGKILL before a minute has passed
TEST_P(RemainsTest, AZombieDoesNotOutliveSigkill) {
  rig_->Send(rig_->Shell("echo $$; exec sleep 1000", 2));
  pid_t traced = 0;
  ASSERT_TRUE(absl::SimpleAtoi(rig_->Lines(1, 2)[0], &traced));
  ASSERT_EQ(ptrace(PTRACE_SEIZE, traced, nullptr, nullptr), 0);
  const pid_t pid = StartFrozen("echo $$; exec sleep 1000");
  rig_->Send(StopFrame{2, 0});
  rig_->Send(StopFrame{1, 0});
  // The traced process, which was killed before, has not been reported by then.
  ExpectNames(pid, NextRemains());
  for (const Frame& frame : rig_->frames) {
    const auto* remains = std::get_if<RemainsFrame>(&frame);
    EXPECT_TRUE(remains == nullptr || remains->group == 1u);
  }
  EXPECT_EQ(InspectProcess(traced)->state, 'Z');
  EXPECT_EQ(waitpid(traced, nullptr, __WALL), traced);
  ASSERT_OK(freezer_->Thaw());
  rig_->Until([&] { return rig_->AllGoneCount(1) == 1 && rig_->AllGoneCount(2) == 1; });
}

TEST_P(RemainsTest, OfAWorkerThatHasEnded_AreReportedToo) {
  const pid_t pid = StartFrozen("setsid sh -c 'echo $$; exec sleep 1000' & wait");
  rig_->Send(StopFrame{1, 0});
  rig_->Until([&] { return rig_->Exit().has_value(); });
  ExpectNames(pid, NextRemains());
  EXPECT_EQ(rig_->AllGoneCount(), 0);
  ASSERT_OK(freezer_->Thaw());
  rig_->Until([&] { return rig_->AllGoneCount() == 1; });
  EXPECT_TRUE(WaitUntilDead(pid));
}

// Fault (worker): A launcher ends while a process survives SIGKILL -> Its supervisor names the
// process and where it is stuck
TEST_P(RemainsTest, AreNamedBySupervisorsThatLeaveBefore) {
  testing::internal::CaptureStderr();
  StartSupervisor();
  const pid_t pid = StartFrozen("echo $$; exec sleep 1000");
  rig_->Close();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr(absl::StrCat("outlive SIGKILL; pid ", pid, " is in ")));
  ASSERT_OK(freezer_->Thaw());
  EXPECT_TRUE(WaitUntilDead(pid));
}

TEST_P(RemainsTest, OfASupervisorThatWasKilled_AreLeftOvers) {
  const pid_t pid = StartFrozen("echo $$; exec sleep 1000");
  kill(rig_->client().pid(), SIGKILL);
  ASSERT_TRUE(WaitUntilDead(rig_->client().pid()));
  auto read = rig_->client().Read();
  while (read.ok()) read = rig_->client().Read();
  Leftovers leftovers = rig_->client().leftovers();
  const auto remains = KillLeftovers(leftovers, absl::ZeroDuration());
  ASSERT_EQ(remains.size(), 1u);
  ExpectNames(pid, remains.front());
  ASSERT_OK(freezer_->Thaw());
  EXPECT_THAT(KillLeftovers(leftovers, kRigTimeout), IsEmpty());
  EXPECT_FALSE(InspectProcess(pid).has_value()) << "it is reaped";
  EXPECT_THAT(leftovers.sessions, IsEmpty()) << "their numbers may be a stranger's from now on";
}

// Holds on a machine that has slept: its two clocks are a day apart, in a time namespace of the
// test.

constexpr absl::Duration kSlept = absl::Hours(24);

// Applies to the processes that this thread starts from now on. Returns false if this machine does
// not allow it.
bool SetClocksApart() {
  if (unshare(CLONE_NEWTIME) != 0) return false;
  std::ofstream offsets(absl::StrCat("/proc/", gettid(), "/timens_offsets"));
  offsets << "boottime " << absl::ToInt64Seconds(kSlept) << " 0" << std::endl;
  return offsets.good();
}

TEST(SleepTest, AHoldGoesByTheClockThatGoesOnWhileTheMachineSleeps) {
  // In a thread, so that other tests keep their clocks.
  std::thread own([] {
    if (!SetClocksApart()) GTEST_SKIP() << "no time namespaces here";
    SupervisorRig rig;
    rig.Send(rig.Shell("echo up; exec sleep 1000"));
    rig.Send(rig.Shell("echo up; exec sleep 1000", 2));
    rig.Lines(1);
    rig.Lines(1, 2);
    const MonoTime begin = BootNow();
    rig.Send(HoldFrame{2, (begin + kSlept + absl::Hours(1)).micros()});
    rig.Send(HoldFrame{1, (begin + kSlept + absl::Milliseconds(300)).micros()});
    ASSERT_TRUE(rig.Until([&] { return rig.AllGoneCount() == 1; }));
    EXPECT_GE(BootNow() - begin, absl::Milliseconds(300));
    EXPECT_EQ(rig.Exit()->signal, SIGKILL);
    // A hold that has passed meanwhile is over at once.
    rig.Send(HoldFrame{2, (begin + kSlept).micros()});
    ASSERT_TRUE(rig.Until([&] { return rig.AllGoneCount(2) == 1; }));
  });
  own.join();
}

}  // namespace
}  // namespace cadre::supervisor
