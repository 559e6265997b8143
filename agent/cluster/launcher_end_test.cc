#include <errno.h>

#include "agent/cluster/allocation_launcher.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;

supervisor::ExitedFrame Exit(int code, const char* lines) {
  supervisor::ExitedFrame exited;
  exited.exit_code = code;
  exited.last_lines = lines;
  return exited;
}

TEST(PartEndTest, TheLastLineSaysWhyAndTheStatusWhoseDoingItWas) {
  v1::PartReport report =
      DescribeLauncherEnd(Exit(69, "something\ncadre: working_dir /x: no such file\n\n"));
  EXPECT_EQ(report.text(), "working_dir /x: no such file (exited with status 69)");
  EXPECT_EQ(report.blame(), v1::BLAME_NODE);
  EXPECT_EQ(DescribeLauncherEnd(Exit(65, "cadre: bad")).blame(), v1::BLAME_JOB);
  EXPECT_EQ(DescribeLauncherEnd(Exit(64, "cadre: bad")).blame(), v1::BLAME_JOB);
  EXPECT_EQ(DescribeLauncherEnd(Exit(75, "cadre: later")).blame(), v1::BLAME_NOBODY);
  EXPECT_EQ(DescribeLauncherEnd(Exit(1, "")).text(), "exited with status 1");
}

TEST(PartEndTest, ASignalAndAProgramThatIsNotThereAreTheNodes) {
  supervisor::ExitedFrame killed = Exit(0, "");
  killed.signal = 9;
  EXPECT_EQ(DescribeLauncherEnd(killed).text(), "was killed by signal 9 (SIGKILL)");
  killed.last_lines = "cadre: generation 1 running\n";
  killed.out_of_memory = true;
  EXPECT_EQ(DescribeLauncherEnd(killed).text(),
            "was killed because memory ran out; it wrote last: generation 1 running");
  EXPECT_EQ(DescribeLauncherEnd(killed).blame(), v1::BLAME_NODE);
  supervisor::ExitedFrame absent = Exit(0, "");
  absent.exec_errno = ENOENT;
  absent.exec_step = "exec";
  EXPECT_THAT(DescribeLauncherEnd(absent).text(), HasSubstr("exec: No such file or directory"));
  EXPECT_EQ(DescribeLauncherEnd(absent).blame(), v1::BLAME_NODE);
}

TEST(PartEndTest, AShortageIsNotTheNodesFault) {
  for (const int passes : {ENOSPC, EDQUOT, EMFILE, ENFILE, ENOMEM, EAGAIN}) {
    EXPECT_EQ(BlameForUnstarted(absl::ErrnoToStatusCode(passes)), v1::BLAME_NOBODY) << passes;
    supervisor::ExitedFrame exited;
    exited.exec_errno = passes;
    EXPECT_EQ(DescribeLauncherEnd(exited).blame(), v1::BLAME_NOBODY) << passes;
  }
  EXPECT_EQ(BlameForUnstarted(absl::StatusCode::kDeadlineExceeded), v1::BLAME_NOBODY);
  for (const int stays : {ENOENT, EACCES, EEXIST, EROFS}) {
    EXPECT_EQ(BlameForUnstarted(absl::ErrnoToStatusCode(stays)), v1::BLAME_NODE) << stays;
  }
}

TEST(PartGroupsTest, EachPartHasAGroupOfItsOwn_WhichIsNotUsedAgain) {
  AllocationGroups groups;
  const uint64_t first = groups.Add(700);
  const uint64_t second = groups.Add(12);
  EXPECT_NE(first, second);
  EXPECT_EQ(groups.GroupOf(700), first);
  EXPECT_EQ(groups.AllocationOf(second), 12u);
  groups.Remove(700);
  EXPECT_FALSE(groups.GroupOf(700).has_value());
  EXPECT_FALSE(groups.AllocationOf(first).has_value());
  const uint64_t again = groups.Add(700);
  EXPECT_NE(again, first);
  EXPECT_NE(again, second);
  EXPECT_EQ(groups.AllocationOf(again), 700u);
}

}  // namespace
}  // namespace cadre::agent
