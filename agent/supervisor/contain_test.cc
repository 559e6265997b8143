// What a group is held to, with the real supervisor and the real kernel. A machine that cannot hold
// it says why in the place of a test.
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/supervisor/processes/containable.h"
#include "agent/supervisor/supervisor_rig.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Numbers of devices that are there on every machine, in place of a GPU's.
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
    const std::string why_not = WhatCanBeContained().devices;
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
  // As another user, whose cgroup it is.
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

TEST_F(ContainTest, ADeviceThatWasNotGivenCannotBeOpened) {
  constexpr char kTry[] =
      "for d in zero full; do (: <$d) && echo $d opens || echo $d does not; done";
  rig_.Run(Contained(kTry, {{kMemoryMajor, kFullMinor, kFullMinor, true},
                            {kMemoryMajor, kZeroMinor, kFullMinor, false}}));
  EXPECT_EQ(rig_.Output(1), "zero does not\nfull opens\n");
  EXPECT_TRUE(absl::StrContains(rig_.Output(2), "Operation not permitted")) << rig_.Output(2);
}

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

TEST_F(ContainTest, ProcessesAreNotMoreThanItsLimit) {
  const std::string why_not = WhatCanBeContained().pids;
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

TEST_F(ContainTest, WhoTakesMoreMemoryThanItsLimitIsKilled) {
  const std::string why_not = WhatCanBeContained().memory;
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  // A line without an end.
  StartFrame start = Contained("[ -e $cg/memory.max ] || exit 77; exec tail /dev/zero");
  start.containment.memory_bytes = kMemoryLimit;
  const ExitedFrame exited = rig_.Run(start);
  if (exited.exit_code == 77) GTEST_SKIP() << "others are in the cgroup of this test";
  EXPECT_EQ(exited.signal, SIGKILL);
  EXPECT_TRUE(exited.out_of_memory);
  EXPECT_EQ(exited.memory_limit, 0u) << "not this supervisor's own";
}

// A launcher's supervisor, within the limit.
TEST(WithinALimit, DISABLED_ItIsNamed) {
  SupervisorRig rig;
  const ExitedFrame exited = rig.Run(rig.Shell("exec tail /dev/zero"));
  EXPECT_EQ(exited.signal, SIGKILL);
  EXPECT_TRUE(exited.out_of_memory);
  EXPECT_EQ(exited.memory_limit, kMemoryLimit);
}

TEST_F(ContainTest, TheSupervisorOfALauncherNamesTheLimit) {
  const std::string why_not = WhatCanBeContained().memory;
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  StartFrame start =
      Contained(absl::StrCat("[ -e $cg/memory.max ] || exit 77; exec ",
                             std::filesystem::read_symlink("/proc/self/exe").string(),
                             " --gtest_also_run_disabled_tests --gtest_filter=WithinALimit.*"));
  start.environment.push_back(absl::StrCat(
      "CADRE_SUPERVISOR=", std::filesystem::absolute(getenv("CADRE_SUPERVISOR")).string()));
  start.environment.push_back("TEST_TMPDIR=/tmp");
  // Bazel's folder may be closed to others: as root, with the cgroup that it divides.
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
