// Where a controller of cgroup v2 is to be had, with real cgroups. What limits do is shown by
// agent/supervisor's contain_test.
#include "agent/supervisor/processes/controllers.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/processes/cgroup_files.h"
#include "agent/supervisor/processes/cgroup_place.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using ::testing::HasSubstr;

constexpr char kHeader[] = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n";

ControllerFiles Files(const std::string& kernel, const std::string& everywhere,
                      const std::string& here) {
  return {kHeader + kernel, everywhere, here, "/sys/fs/cgroup/user.slice"};
}

TEST(WhyWithout, SaysWhatStandsInTheWay) {
  EXPECT_EQ(WhyWithout("memory", Files("memory\t0\t9\t1\n", "cpu memory pids\n", "memory pids\n")),
            "");
  EXPECT_THAT(WhyWithout("memory", Files("memory\t0\t9\t1\n", "cpu memory\n", "cpu\n")),
              HasSubstr("/sys/fs/cgroup/user.slice is not given cgroup v2's memory controller"));
  EXPECT_THAT(WhyWithout("memory", Files("cpu\t0\t9\t1\nmemory\t0\t9\t0\n", "cpu\n", "")),
              HasSubstr("cgroup_enable=memory"));
  EXPECT_THAT(WhyWithout("pids", Files("memory\t0\t1\t1\npids\t8\t1\t1\n", "hugetlb\n", "")),
              HasSubstr("the pids controller is cgroup v1's"));
  EXPECT_THAT(WhyWithout("pids", Files("", "memory\n", "memory\n")),
              HasSubstr("no pids controller"));
}

TEST(PassOn, WhereThereIsNoCgroupItSaysWhyNot) {
  EXPECT_NE(PassOn("memory", "/nowhere", "/nowhere/root"), "");
}

// A cgroup below this test's, which has a controller to pass on, as a service's cgroup does.
class PassOnTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs to be root";
    const ControllerFiles files = ReadControllerFiles();
    place_ = files.place;
    for (const char* name : {"memory", "hugetlb"}) {
      if (WhyWithout(name, files).empty()) controller_ = name;
    }
    if (controller_.empty()) GTEST_SKIP() << WhyWithout("memory", files);
    was_passed_on_ = Passes(place_);
    service_ = absl::StrCat(place_, "/controllers_test_", getpid());
    root_ = service_ + "/root";
    beside_ = service_ + "_beside";
    for (const std::string& path : {service_, root_, beside_}) {
      ASSERT_EQ(mkdir(path.c_str(), 0755), 0) << path;
    }
    const std::string why_not = PassOn(controller_, place_, beside_);
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    ASSERT_TRUE(WriteKernelFile(service_ + "/cgroup.procs", absl::StrCat(getpid())));
  }
  // As it was found, also where it is not the hierarchy's root and so must pass nothing on.
  void TearDown() override {
    if (root_.empty()) return;
    for (const std::string& path : {root_, service_, beside_, was_passed_on_ ? "" : place_}) {
      if (!path.empty()) WriteKernelFile(path + "/cgroup.subtree_control", "-" + controller_);
    }
    EXPECT_TRUE(WriteKernelFile(place_ + "/cgroup.procs", absl::StrCat(getpid())));
    for (const std::string& path : {service_, beside_}) EXPECT_TRUE(RemoveCgroup(path)) << path;
  }
  bool Passes(const std::string& path) const {
    const std::string text = KernelFileText(path + "/cgroup.subtree_control");
    return text.find(controller_) != std::string::npos;
  }

  std::string controller_, place_, service_, root_, beside_;
  bool was_passed_on_ = false;
};

TEST_F(PassOnTest, WhoIsAloneThereMovesAsideForIt) {
  EXPECT_EQ(PassOn(controller_, service_, root_), "");
  EXPECT_TRUE(Passes(service_));
  EXPECT_TRUE(Passes(root_));
  const std::string own = PathIn(KernelFileText("/proc/self/cgroup"), "");
  EXPECT_EQ(CgroupMount() + own, service_ + "/cadre-agent");
  EXPECT_EQ(PassOn(controller_, service_, root_), "") << "again";
}

TEST_F(PassOnTest, WhereOthersAreNobodyMoves) {
  const pid_t other = fork();
  if (other == 0) {
    pause();
    _exit(0);
  }
  EXPECT_THAT(PassOn(controller_, service_, root_),
              HasSubstr(absl::StrCat("process ", other, " is in ", service_)));
  EXPECT_FALSE(Passes(service_));
  EXPECT_NE(access((service_ + "/cadre-agent").c_str(), F_OK), 0);
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
}

}  // namespace
}  // namespace cadre::supervisor
