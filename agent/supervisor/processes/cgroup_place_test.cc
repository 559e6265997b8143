#include "agent/supervisor/processes/cgroup_place.h"

#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

TEST(CgroupPlace, IsReadFromTheLineOfTheController) {
  constexpr char kHybrid[] = "4:cpu,memory:/docker/7\n1:name=systemd:/\n0::/user.slice:x\n";
  EXPECT_EQ(PathIn(kHybrid, "memory"), "/docker/7");
  EXPECT_EQ(PathIn(kHybrid, ""), "/user.slice:x");
  EXPECT_EQ(PathIn(kHybrid, "name=systemd"), "") << "the root";
  EXPECT_EQ(PathIn(kHybrid, "mem"), "") << "there is none of that name";
}

}  // namespace
}  // namespace cadre::supervisor
