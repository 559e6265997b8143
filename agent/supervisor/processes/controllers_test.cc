// What a cgroup gets for real is shown by agent/supervisor's contain_test.
#include "agent/supervisor/processes/controllers.h"

#include <unistd.h>

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

}  // namespace
}  // namespace cadre::supervisor
