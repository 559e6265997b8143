#include "agent/workers/exit_report.h"

#include <signal.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;

// Fault (queue): The kernel kills a worker at a memory limit -> The verdict names the limit
TEST(ExitReport, AKillAtALimitNamesIt) {
  supervisor::ExitedFrame frame;
  frame.signal = SIGKILL;
  frame.out_of_memory = true;
  EXPECT_EQ(HowItEnded(frame), "was killed because memory ran out");
  frame.memory_limit = uint64_t{3} << 30;
  EXPECT_EQ(HowItEnded(frame),
            "was killed: out of memory, as the job reached its limit of 3 GiB on this node");
  frame.memory_limit = uint64_t{1088} << 20;
  EXPECT_THAT(HowItEnded(frame), HasSubstr("1088 MiB"));
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

TEST(ExitReport, ALongTracebackKeepsItsException) {
  supervisor::ExitedFrame frame;
  frame.exit_code = 1;
  frame.last_lines =
      "  File \"/me/train.py\", line 4, in main\nRuntimeError: Error(s) in loading:\n";
  for (int i = 0; i < 500; ++i) frame.last_lines += "\tsize mismatch for a layer\n";
  EXPECT_LE(ExitOf(frame).last_lines().size(), 4096u);
  EXPECT_EQ(HowItEnded(frame),
            "exited with status 1: RuntimeError: Error(s) in loading: (train.py, line 4)");
}

TEST(ExitReport, TheEndOfAScriptIsInSlurmsWords) {
  const auto line = [](v1::FailureCause cause, const std::string& reason) {
    return EndOfScriptLine({1, cause, reason}, "12", "n1", "2026-11-30T16:00:00");
  };
  EXPECT_EQ(line(v1::TOTAL_TIMEOUT, ""),
            "cadre: *** JOB 12 ON n1 CANCELLED AT 2026-11-30T16:00:00 DUE TO TIME LIMIT ***\n");
  EXPECT_EQ(line(v1::PREEMPTED, ""),
            "cadre: *** JOB 12 ON n1 CANCELLED AT 2026-11-30T16:00:00 DUE TO NODE FAILURE ***\n");
  EXPECT_EQ(line(v1::REQUEUED, ""),
            "cadre: *** JOB 12 ON n1 CANCELLED AT 2026-11-30T16:00:00 DUE TO JOB REQUEUE ***\n");
  EXPECT_EQ(line(v1::CANCELLED, ""),
            "cadre: *** JOB 12 ON n1 CANCELLED AT 2026-11-30T16:00:00 ***\n");
  EXPECT_EQ(line(v1::CANCELLED, "by alice"),
            "cadre: *** JOB 12 ON n1 CANCELLED AT 2026-11-30T16:00:00: by alice ***\n");
}

}  // namespace
}  // namespace cadre::agent
