// Start and end of the supervisor, seen from its agent: no process may survive.
#include "agent/supervisor/client.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/supervisor/processes/process_scan.h"
#include "agent/supervisor/supervisor_rig.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

pid_t ToPid(const std::string& text) {
  pid_t pid = 0;
  EXPECT_TRUE(absl::SimpleAtoi(text, &pid)) << text;
  return pid;
}

bool Alive(pid_t pid) {
  const auto info = InspectProcess(pid);
  return info.has_value() && info->state != 'Z';
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// A child of this process itself, which the client must leave alone.
class OwnChild {
 public:
  OwnChild() {
    char* const argv[] = {const_cast<char*>("sleep"), const_cast<char*>("1000"), nullptr};
    char* const environment[] = {nullptr};
    EXPECT_EQ(posix_spawnp(&pid_, "sleep", nullptr, nullptr, argv, environment), 0);
  }
  ~OwnChild() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  bool alive() const { return Alive(pid_); }

 private:
  pid_t pid_ = 0;
};

class ClientTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { setenv("CADRE_CGROUPS", GetParam(), 1); }
  void TearDown() override { unsetenv("CADRE_CGROUPS"); }

  // A worker with a grandchild in its own session, both ignoring SIGTERM.
  static std::vector<pid_t> StartStubborn(SupervisorRig& rig) {
    rig.Send(
        rig.Shell("trap '' TERM HUP; echo $$;"
                  "setsid sh -c 'echo $$; while :; do sleep 0.01; done' &"
                  "while :; do sleep 0.01; done"));
    const auto lines = rig.Lines(2);
    return {ToPid(lines[0]), ToPid(lines[1])};
  }
};
INSTANTIATE_TEST_SUITE_P(Cgroups, ClientTest, ::testing::Values("on", "off"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ClientTest, ClosingKillsEverythingWithinASecond) {
  OwnChild own;
  SupervisorRig rig;
  const auto pids = StartStubborn(rig);
  const pid_t supervisor = rig.client().pid();
  const MonoTime before = MonoNow();
  rig.Close();
  EXPECT_LT(MonoNow() - before, absl::Seconds(1));
  for (const pid_t pid : pids) EXPECT_FALSE(Alive(pid)) << pid;
  EXPECT_FALSE(InspectProcess(supervisor).has_value()) << "not reaped";
  EXPECT_FALSE(Exists(rig.ready().cgroup));
  EXPECT_TRUE(own.alive());
}

TEST_P(ClientTest, KillingTheSupervisorLeavesNothing) {
  OwnChild own;
  SupervisorRig rig;
  const auto pids = StartStubborn(rig);
  kill(rig.client().pid(), SIGKILL);
  const MonoTime before = MonoNow();
  pollfd gone = {rig.client().fd(), POLLIN, 0};
  ASSERT_EQ(poll(&gone, 1, 10000), 1);
  auto read = rig.client().Read();
  while (read.ok()) read = rig.client().Read();
  EXPECT_THAT(read, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("was killed by signal 9")));
  EXPECT_LT(MonoNow() - before, absl::Seconds(1));
  for (const pid_t pid : pids) EXPECT_FALSE(InspectProcess(pid).has_value()) << pid;
  EXPECT_FALSE(Exists(rig.ready().cgroup));
  EXPECT_TRUE(own.alive());
  EXPECT_THAT(rig.client().Read(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(rig.client().Send(StopFrame{1, 0}), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_P(ClientTest, KillingTheSupervisorBeforeAnyReadLeavesNothing) {
  SupervisorRig rig;
  const auto pids = StartStubborn(rig);
  kill(rig.client().pid(), SIGKILL);
  rig.Close();
  for (const pid_t pid : pids) EXPECT_FALSE(Alive(pid)) << pid;
  EXPECT_FALSE(Exists(rig.ready().cgroup));
}

TEST_P(ClientTest, AStoppedSupervisorHoldsTheAgentUpForASetTimeOnly) {
  SupervisorRig rig;
  const auto pids = StartStubborn(rig);
  kill(rig.client().pid(), SIGSTOP);
  const MonoTime before = MonoNow();
  rig.Close();
  EXPECT_LT(MonoNow() - before, absl::Seconds(5));
  for (const pid_t pid : pids) EXPECT_FALSE(Alive(pid)) << pid;
}

TEST_P(ClientTest, SignalsOfTheTerminalDoNotReachIt) {
  SupervisorRig rig;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGTSTP}) {
    kill(rig.client().pid(), signal);
  }
  EXPECT_EQ(rig.Run(rig.Shell("exit 4")).exit_code, 4);
  EXPECT_NE(getpgid(rig.client().pid()), getpgrp());
}

TEST_P(ClientTest, ASupervisorStartsBesideOthers) {
  SupervisorRig first;
  first.Send(first.Shell("echo up; exec sleep 1000"));
  first.Lines(1);
  {
    SupervisorRig second;
    EXPECT_EQ(second.Run(second.Shell("true")).exit_code, 0);
  }
  EXPECT_TRUE(Alive(first.Started()->pid)) << "the second one's end is not the first one's";
}

TEST(ClientStartTest, NamesAProgramThatIsNotThere) {
  const std::string real = getenv("CADRE_SUPERVISOR");
  setenv("CADRE_SUPERVISOR", "/nowhere/cadre-supervisor", 1);
  EXPECT_THAT(Client::Start(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/cadre-supervisor")));
  setenv("CADRE_SUPERVISOR", real.c_str(), 1);
}

// As a container's old seccomp profile does to this process and its children.
bool RefuseClone3() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {sizeof(rules) / sizeof(rules[0]), rules};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(ClientStartTest, WhereProcessesAreRefused_TheSupervisorIsNotSaidToBeMissing) {
  int said[2];
  ASSERT_EQ(pipe(said), 0);
  const pid_t child = fork();
  if (child == 0) {
    std::string text = "no filter";
    if (RefuseClone3()) text = Client::Start().status().ToString();
    _exit(write(said[1], text.data(), text.size()) > 0 ? 0 : 1);
  }
  close(said[1]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  char text[1024] = "";
  const ssize_t got = read(said[0], text, sizeof(text) - 1);
  close(said[0]);
  if (got > 0 && std::string(text) == "no filter") GTEST_SKIP() << "needs seccomp filters";
  EXPECT_THAT(std::string(text), AllOf(HasSubstr("Operation not permitted"), HasSubstr("seccomp"),
                                       Not(HasSubstr("install cadre-supervisor"))));
}

TEST(ClientStartTest, TheNextSupervisorRemovesWhatADeadOneLeft) {
  std::string cgroup;
  {
    SupervisorRig rig;
    cgroup = rig.ready().cgroup;
  }
  if (cgroup.empty()) GTEST_SKIP() << "no cgroups here";
  // The pid is free again, and so is the name.
  ASSERT_EQ(mkdir(cgroup.c_str(), 0755), 0);
  ASSERT_EQ(mkdir((cgroup + "/g1").c_str(), 0755), 0);
  SupervisorRig next;
  EXPECT_FALSE(Exists(cgroup));
}

TEST(ClientStartTest, ACommandOverTheLimitIsRefusedByName) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("true");
  start.environment.push_back(std::string(kMaxFrameBytes, 'x'));
  EXPECT_THAT(rig.client().Send(start),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("environment")));
  EXPECT_EQ(rig.Run(rig.Shell("true", 1)).exit_code, 0);
}

// Each has 1 MiB of environment, which the kernel accepts.
StartFrame Large(SupervisorRig& rig, uint64_t group) {
  StartFrame start = rig.Shell("true", group);
  for (int i = 0; i < 16; ++i) {
    start.environment.push_back(absl::StrCat("X", i, "=", std::string(64 << 10, 'x')));
  }
  return start;
}

// Fault (worker): Many workers have large environments, so that their start requests exceed 16 MiB
// -> The requests wait until the supervisor has read them
TEST(ClientStartTest, MoreThanItReadsInAMomentIsTakenInTime) {
  constexpr uint64_t kGroups = 24;
  SupervisorRig rig;
  // Ensures that the supervisor does not read meanwhile.
  kill(rig.client().pid(), SIGSTOP);
  for (uint64_t group = 1; group <= kGroups; ++group) {
    EXPECT_OK(rig.client().Send(Large(rig, group)));
  }
  kill(rig.client().pid(), SIGCONT);
  for (uint64_t group = 1; group <= kGroups; ++group) {
    ASSERT_TRUE(rig.Until([&] { return rig.Exit(group).has_value(); }));
    EXPECT_EQ(rig.Exit(group)->exit_code, 0);
    EXPECT_EQ(rig.Exit(group)->exec_errno, 0);
  }
}

// Fault (worker): The supervisor reads no start request for 10 s -> It is given up
TEST(ClientStartTest, TheQueueOfOneThatTakesNothingIsBounded) {
  SupervisorRig rig;
  kill(rig.client().pid(), SIGSTOP);
  const MonoTime now = MonoNow();
  for (uint64_t group = 1; group <= 24; ++group) {
    ASSERT_OK(rig.client().Send(Large(rig, group), now));
  }
  EXPECT_OK(rig.client().Send(StopFrame{1, 0}, now + (kSupervisorStallTimeout - absl::Seconds(1))));
  EXPECT_THAT(rig.client().Send(StopFrame{1, 0}, now + kSupervisorStallTimeout),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("does not read")));
  kill(rig.client().pid(), SIGCONT);
}

}  // namespace
}  // namespace cadre::supervisor
