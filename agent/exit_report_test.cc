#include "agent/exit_report.h"

#include <signal.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;

TEST(ExitReport, AKillAtALimitNamesIt) {
  supervisor::ExitedFrame frame;
  frame.signal = SIGKILL;
  frame.out_of_memory = true;
  EXPECT_EQ(HowItEnded(frame), "was killed because memory ran out");
  frame.memory_limit = uint64_t{3} << 30;
  EXPECT_EQ(HowItEnded(frame),
            "was killed: out of memory, as the job reached its limit of 3 GiB on this node");
  frame.memory_limit = uint64_t{1536} << 20;
  EXPECT_THAT(HowItEnded(frame), HasSubstr("1536 MiB"));
  EXPECT_TRUE(ExitOf(frame).out_of_memory());
}

TEST(ExitReport, WhoFailedForAnotherThatWasKilledWasNotKilled) {
  supervisor::ExitedFrame frame;
  frame.exit_code = 137;
  frame.out_of_memory = true;
  frame.memory_limit = uint64_t{3} << 30;
  frame.last_lines = "Killed\n";
  EXPECT_EQ(ExitOf(frame).ended_with(), "");
  EXPECT_THAT(HowItEnded(frame), HasSubstr("memory"));
}

}  // namespace
}  // namespace cadre::agent
