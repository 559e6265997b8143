// Processes that SIGKILL does not end, with the real supervisor and the freezer of cgroup v1. Each
// test runs with cgroups where the machine has them, and without.
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/supervisor/processes/process_scan.h"
#include "agent/supervisor/supervisor_rig.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/freezer.h"

namespace cadre::supervisor {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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

  // Starts it, and freezes the process whose number it prints.
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
  // Thaws before the supervisor goes.
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
  // Other groups are none the worse for it.
  rig_->Stop(0, 2);
  rig_->frames.clear();
  // Whoever asks is told again.
  rig_->Send(StopFrame{1, 0});
  ExpectNames(pid, NextRemains());
  ASSERT_OK(freezer_->Thaw());
  rig_->Until([&] { return rig_->AllGoneCount() == 1; });
  EXPECT_EQ(rig_->Exit()->signal, SIGKILL);
}

// It is dead, and whoever traces it does not take note.
TEST_P(RemainsTest, AZombieDoesNotOutliveSigkill) {
  rig_->Send(rig_->Shell("echo $$; exec sleep 1000", 2));
  pid_t traced = 0;
  ASSERT_TRUE(absl::SimpleAtoi(rig_->Lines(1, 2)[0], &traced));
  ASSERT_EQ(ptrace(PTRACE_SEIZE, traced, nullptr, nullptr), 0);
  const pid_t pid = StartFrozen("echo $$; exec sleep 1000");
  rig_->Send(StopFrame{2, 0});
  rig_->Send(StopFrame{1, 0});
  // Nor has the traced one, which was killed before, been reported then.
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
  EXPECT_THAT(KillLeftovers(leftovers, kPatience), IsEmpty());
  EXPECT_FALSE(InspectProcess(pid).has_value()) << "it is reaped";
  EXPECT_THAT(leftovers.sessions, IsEmpty()) << "their numbers may be a stranger's from now on";
}

}  // namespace
}  // namespace cadre::supervisor
