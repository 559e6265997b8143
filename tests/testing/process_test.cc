#include "tests/testing/process.h"

#include <signal.h>

#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Process> Shell(const std::string& script) {
  auto process = Process::Start({{"/bin/sh", "-c", script}, {}, "", false});
  EXPECT_OK(process);
  return *std::move(process);
}

TEST(ProcessTest, ExitStatus_IsTheShells) {
  EXPECT_EQ(Shell("exit 3")->Wait(), 3);
  EXPECT_EQ(Shell("kill -9 $$")->Wait(), 137);
}

TEST(ProcessTest, WaitForLine_FindsLinesOfBothStreamsInOrder) {
  auto process = Shell("echo one; echo two >&2; echo three");
  EXPECT_EQ(process->WaitForLine("one"), "one");
  EXPECT_EQ(process->WaitForLine("absent", absl::Milliseconds(300)), std::nullopt);
  EXPECT_EQ(process->Wait(), 0);
  EXPECT_THAT(process->standard_error(), HasSubstr("two"));
  EXPECT_THAT(process->standard_output(), HasSubstr("three"));
}

TEST(ProcessTest, Wait_OnARunningProcess_GivesUpAtTheTimeout) {
  auto process = Shell("exec cat /dev/zero >/dev/null");
  EXPECT_EQ(process->Wait(absl::Milliseconds(20)), std::nullopt);
  EXPECT_TRUE(IsAlive(process->pid()));
  process->Kill(SIGTERM);
  EXPECT_EQ(process->Wait(), 128 + SIGTERM);
  EXPECT_FALSE(IsAlive(process->pid()));
}

TEST(ProcessTest, Output_LargerThanAPipe_NeverBlocksTheProcess) {
  auto process = Shell("head -c 3000000 /dev/zero");
  EXPECT_EQ(process->Wait(), 0);
  EXPECT_EQ(process->standard_output().size(), 3000000u);
}

TEST(ProcessTest, Terminal_IsATerminal) {
  auto process = Process::Start({{"/bin/sh", "-c", "test -t 1 && echo tty"}, {}, "", true});
  ASSERT_OK(process);
  EXPECT_TRUE((*process)->WaitForLine("tty").has_value());
}

}  // namespace
}  // namespace cadre
