// Processes that stand by, with the real supervisor.
#include <signal.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/output/stdio.h"
#include "agent/supervisor/supervisor_rig.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

constexpr uint64_t kStandby = 5;

class StandbyTest : public ::testing::Test {
 protected:
  // One that says in a file when it waits, shows what it is told, and goes on.
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
  // What it wrote before it had a place is in the place's log below, and is not shown.
  rig_.Until([&] { return rig_.Output(kStdoutStream, 9) == "RANK=3\nWORLD_SIZE=4\n\nplaced\n"; });
  EXPECT_EQ(rig_.Output(kStdoutStream, kStandby), "");
  // It is the group with all that belongs to one.
  rig_.Stop(0, 9);
  EXPECT_EQ(rig_.Exit(9)->signal, SIGKILL);
  EXPECT_EQ(rig_.Exit(9)->pid, pid);
  // Files are written by the time that the end is reported.
  EXPECT_EQ(ReadFile(rig_.folder() + "/rank_9/log"), "loaded\nRANK=3\nWORLD_SIZE=4\n\nplaced\n");
  EXPECT_NE(access((rig_.folder() + "/standby_5/log").c_str(), F_OK), 0);
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
  // One that is started anew and one that has stood by are ready in any order.
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

// A group beside it ends as if it were alone: nobody takes what is left for the other's.
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

}  // namespace
}  // namespace cadre::supervisor
