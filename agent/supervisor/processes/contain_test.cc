#include "agent/supervisor/processes/contain.h"

#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Not;
using ::testing::StartsWith;

// A folder that is no cgroup has none of the files that limits go to.
TEST(ContainCgroupTest, SaysWhichLimitsCannotBeSet) {
  Containment containment = {true, geteuid(), getegid(), {}};
  EXPECT_THAT(
      ContainCgroup(::testing::TempDir(), containment),
      AllOf(Not(Contains(StartsWith(kNoMemoryLimit))), Not(Contains(StartsWith(kNoProcessLimit)))));
  containment.memory_bytes = 64 << 20;
  containment.max_pids = 6;
  const std::string missing = "No such file or directory";
  EXPECT_THAT(ContainCgroup(::testing::TempDir(), containment),
              AllOf(Contains(kNoMemoryLimit + missing), Contains(kNoProcessLimit + missing)));
}

}  // namespace
}  // namespace cadre::supervisor
