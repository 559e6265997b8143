#include "agent/evidence/native_stacks.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <memory>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTestTimeout = absl::Seconds(60);

class OutputOfToolTest : public testing::Test {
 protected:
  // Like the agent, so that orphans are reparented to this process.
  void SetUp() override { ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); }
  void TearDown() override { EXPECT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 0), 0); }
  static void ExpectNoChildren() {
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }

  const std::string file_ = MakeTempDir("tool") + "/pid";
  std::atomic<bool> cancelled_{false};
};

TEST_F(OutputOfToolTest, OfOneThatEnds) {
  EXPECT_EQ(OutputOfTool({"/bin/echo", "a", "b"}, MonoNow() + kTestTimeout, cancelled_), "a b\n");
  ExpectNoChildren();
}

TEST_F(OutputOfToolTest, WhenItIsKilledItsOwnChildIsWaitedForToo) {
  std::thread canceller([this] {
    const MonoTime end = MonoNow() + kTestTimeout;
    while (ReadFileOrEmpty(file_).empty() && MonoNow() < end) poll(nullptr, 0, 1);
    cancelled_ = true;
  });
  const std::string text =
      OutputOfTool({"/bin/sh", "-c", "sleep 1000 & echo $! > \"$0\"; wait", file_},
                   MonoNow() + kTestTimeout, cancelled_);
  canceller.join();
  EXPECT_NE(ReadFileOrEmpty(file_), "");
  EXPECT_THAT(text, HasSubstr("was not done in time"));
  ExpectNoChildren();
}

TEST_F(OutputOfToolTest, WhenItEndsItsOwnChildIsWaitedForToo) {
  EXPECT_EQ(OutputOfTool({"/bin/sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo done"},
                         MonoNow() + kTestTimeout, cancelled_),
            "done\n");
  ExpectNoChildren();
}

// A process that is examined by a tool that is killed while it attaches.
class StacksByTest : public testing::Test {
 protected:
  void Start(const std::vector<std::string>& argv) {
    ProcessOptions options;
    options.argv = argv;
    options.terminal = true;
    auto process = Process::Start(options);
    ASSERT_TRUE(process.ok());
    process_ = *std::move(process);
  }
  bool AwaitStatus(const std::string& text) const {
    const std::string file = absl::StrCat("/proc/", process_->pid(), "/status");
    const MonoTime end = MonoNow() + kTestTimeout;
    while (!absl::StrContains(ReadFileOrEmpty(file), text)) {
      if (MonoNow() > end) return false;
      poll(nullptr, 0, 1);
    }
    return true;
  }
  void AttachAndCancel() const {
    std::atomic<bool> cancelled{false};
    std::thread canceller([&] {
      const std::string file = absl::StrCat("/proc/", process_->pid(), "/status");
      const MonoTime end = MonoNow() + kTestTimeout;
      while (absl::StrContains(ReadFileOrEmpty(file), "TracerPid:\t0\n") && MonoNow() < end) {
        poll(nullptr, 0, 1);
      }
      cancelled = true;
    });
    EXPECT_THAT(StacksBy({kTool, absl::StrCat(process_->pid())}, process_->pid(),
                         MonoNow() + kTestTimeout, cancelled),
                HasSubstr("was not done in time"));
    canceller.join();
  }

  static constexpr char kTool[] = "agent/evidence/attaching_tool_for_test";
  std::unique_ptr<Process> process_;
};

TEST_F(StacksByTest, TheProcessGoesOn) {
  Start({kTool});
  // While it is being loaded it may wait for a disk too, and SIGUSR1 would still end it.
  ASSERT_TRUE(process_->WaitForLine("ready", kTestTimeout).has_value());
  ASSERT_TRUE(AwaitStatus("State:\tD"));
  AttachAndCancel();
  process_->Type("\n");
  process_->Kill(SIGUSR1);
  EXPECT_TRUE(process_->WaitForLine("here", kTestTimeout).has_value());
}

TEST_F(StacksByTest, WhatWasStoppedBeforeStaysStopped) {
  Start({"/bin/sleep", "1000"});
  process_->Kill(SIGSTOP);
  ASSERT_TRUE(AwaitStatus("State:\tT"));
  AttachAndCancel();
  EXPECT_TRUE(AwaitStatus("State:\tT"));
}

}  // namespace
}  // namespace cadre::agent
