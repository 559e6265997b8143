#include "launcher/environment/first_task.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/environment/signals.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

class FirstTaskTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    if (const char* const before = getenv("XDG_RUNTIME_DIR")) before_ = before;
    setenv("XDG_RUNTIME_DIR", directory_.c_str(), 1);
  }
  void TearDown() override {
    std::filesystem::remove_all(directory_);
    if (before_.has_value()) {
      setenv("XDG_RUNTIME_DIR", before_->c_str(), 1);
    } else {
      unsetenv("XDG_RUNTIME_DIR");
    }
  }

  // The path is short, because a test's own directory may be longer than a socket's name can be.
  std::string directory_ = "/tmp/cadre_task_XXXXXX";
  std::optional<std::string> before_;
};

TEST_F(FirstTaskTest, OthersEndAsItDoes_WhetherTheyComeBeforeOrAfter) {
  std::vector<absl::StatusOr<int>> ends(3, absl::UnknownError("not yet"));
  std::vector<std::thread> others;
  others.emplace_back([&] { ends[0] = FollowFirstTask("slurm-1.0.n1"); });
  auto first = FirstTask::Open("slurm-1.0.n1");
  ASSERT_OK(first);
  for (int i : {1, 2}) others.emplace_back([&, i] { ends[i] = FollowFirstTask("slurm-1.0.n1"); });
  (*first)->End(137, 3, absl::Seconds(30));
  for (std::thread& other : others) other.join();
  for (const auto& end : ends) {
    ASSERT_OK(end);
    EXPECT_EQ(*end, 137);
  }
}

TEST_F(FirstTaskTest, WhatAnEarlierOneLeftIsNoHindrance) {
  const pid_t killed = fork();
  if (killed == 0) {
    const auto first = FirstTask::Open("slurm-1.0.n1");
    raise(SIGKILL);
  }
  ASSERT_EQ(waitpid(killed, nullptr, 0), killed);
  EXPECT_OK(FirstTask::Open("slurm-1.0.n1"));
}

TEST_F(FirstTaskTest, DiesWithoutAStatus) {
  auto first = FirstTask::Open("slurm-1.0.n1");
  ASSERT_OK(first);
  absl::StatusOr<int> end = absl::UnknownError("not yet");
  // It may come before the end or find no first task: neither is a success.
  std::thread other([&] { end = FollowFirstTask("slurm-1.0.n1", absl::Milliseconds(200)); });
  (*first)->End(0, 0);
  other.join();
  EXPECT_THAT(end, StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(FirstTaskTest, NeverComes) {
  EXPECT_THAT(FollowFirstTask("slurm-1.0.n1", absl::Milliseconds(10)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("did not start")));
}

// A launcher blocks the signals that end it, so the test does too.
class InterruptedTaskTest : public FirstTaskTest, public testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    FirstTaskTest::SetUp();
    BlockOnly({SIGINT, SIGTERM, SIGHUP, SIGQUIT});
  }
  void TearDown() override {
    BlockOnly({});
    FirstTaskTest::TearDown();
  }

  // Starts another task, which follows the first and then exits with the same status, or with 99.
  static pid_t Follow() {
    const pid_t child = fork();
    if (child != 0) return child;
    const rlimit no_core = {};
    setrlimit(RLIMIT_CORE, &no_core);
    _exit(FollowFirstTask("slurm-1.0.n1", absl::Seconds(30)).value_or(99));
  }
  static int StatusOf(pid_t child) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
  }
};

TEST_P(InterruptedTaskTest, TheWaitForAFirstTaskThatDoesNotComeEnds) {
  const pid_t child = Follow();
  kill(child, GetParam());
  const int status = StatusOf(child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == GetParam()) << status;
}

// The first task stops the workers on the same signal, so the other tasks must wait for its end.
TEST_P(InterruptedTaskTest, TheWaitForItsEndDoesNot) {
  auto first = FirstTask::Open("slurm-1.0.n1");
  ASSERT_OK(first);
  const pid_t child = Follow();
  kill(child, GetParam());
  (*first)->End(5, 1, absl::Seconds(30));
  const int status = StatusOf(child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 5) << status;
}

INSTANTIATE_TEST_SUITE_P(Signals, InterruptedTaskTest,
                         testing::Values(SIGINT, SIGTERM, SIGHUP, SIGQUIT));

}  // namespace
}  // namespace cadre::launcher
