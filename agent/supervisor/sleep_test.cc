// Holds on a machine that has slept: its two clocks are a day apart, in a namespace of the test's
// own.
#include <sched.h>
#include <signal.h>

#include <fstream>

#include "agent/supervisor/supervisor_rig.h"
#include "base/clock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

constexpr absl::Duration kSlept = absl::Hours(24);

// For the processes that are started from now on. False: this machine does not let us.
bool SetClocksApart() {
  if (unshare(CLONE_NEWTIME) != 0) return false;
  std::ofstream offsets("/proc/self/timens_offsets");
  offsets << "boottime " << absl::ToInt64Seconds(kSlept) << " 0" << std::endl;
  return offsets.good();
}

TEST(SleepTest, AHoldGoesByTheClockThatGoesOnWhileTheMachineSleeps) {
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
  // One that has passed meanwhile is over at once.
  rig.Send(HoldFrame{2, (begin + kSlept).micros()});
  ASSERT_TRUE(rig.Until([&] { return rig.AllGoneCount(2) == 1; }));
}

}  // namespace
}  // namespace cadre::supervisor
