// WorkerSupervisor with real supervisors, which are killed.
#include "agent/workers/worker_supervisor.h"

#include <poll.h>
#include <signal.h>

#include <utility>

#include "agent/recording_display.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;

constexpr int kPatienceMs = 20000;

class WorkerSupervisorTest : public ::testing::Test {
 protected:
  void SetUp() override { Make(); }

  void Make() {
    auto client = supervisor::Client::Start();
    ASSERT_OK(client);
    pid_ = (*client)->pid();
    supervisor_ = std::make_unique<WorkerSupervisor>(*std::move(client), display_);
  }

  // Reads frames until one of this kind has come; returns the error if reading fails.
  template <typename Wanted>
  absl::Status Until() {
    for (;;) {
      pollfd wait = {supervisor_->fd(), POLLIN, 0};
      if (poll(&wait, 1, kPatienceMs) != 1) return absl::DeadlineExceededError("nothing came");
      const auto frames = supervisor_->Read();
      if (!frames.ok()) return frames.status();
      for (const supervisor::Frame& frame : *frames) {
        if (std::holds_alternative<Wanted>(frame)) return absl::OkStatus();
      }
    }
  }

  void StartWorker() {
    supervisor::StartFrame start;
    start.group = 1;
    start.argv = {"/bin/sleep", "1000"};
    start.working_dir = "/";
    ASSERT_TRUE(supervisor_->Send(start));
    ASSERT_OK(Until<supervisor::StartedFrame>());
  }

  RecordingDisplay display_;
  pid_t pid_ = 0;
  std::unique_ptr<WorkerSupervisor> supervisor_;
};

TEST_F(WorkerSupervisorTest, OneThatWorkedIsReplaced) {
  StartWorker();
  kill(pid_, SIGKILL);
  const absl::Status gone = Until<supervisor::ExitedFrame>();
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  EXPECT_TRUE(supervisor_->Replace("it is gone"));
  EXPECT_THAT(display_.own, HasSubstr("it is gone; another one is started"));
  StartWorker();
}

TEST_F(WorkerSupervisorTest, OneThatStartedNothingIsNot) {
  kill(pid_, SIGKILL);
  const absl::Status gone = Until<supervisor::ExitedFrame>();
  EXPECT_TRUE(absl::IsUnavailable(gone)) << gone;
  EXPECT_FALSE(supervisor_->Replace("it is gone"));
  EXPECT_THAT(display_.own, HasSubstr("no other one is started"));
  EXPECT_THAT(supervisor_->why_lost(), HasSubstr("it is gone; no other one is started"));
  EXPECT_FALSE(supervisor_->exists());
  EXPECT_EQ(supervisor_->fd(), -1);
  EXPECT_FALSE(supervisor_->WantsWrite());
  EXPECT_TRUE(supervisor_->Send(supervisor::StopFrame{1, 0})) << "it is known to be lost";
  EXPECT_OK(supervisor_->Read());
  supervisor_->ContinueIfStopped();
  supervisor_->Release();
}

TEST_F(WorkerSupervisorTest, OneThatTakesNothingIsLost) {
  kill(pid_, SIGSTOP);
  supervisor::StartFrame large;
  large.environment = {std::string(3 << 20, 'x')};
  const MonoTime now = MonoNow();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(supervisor_->Send(large, now)) << "it may read yet";
  EXPECT_FALSE(supervisor_->Send(large, now + supervisor::kSupervisorStallTimeout));
  EXPECT_FALSE(supervisor_->exists());
  EXPECT_THAT(display_.own, HasSubstr("cannot give orders to cadre-supervisor"));
  EXPECT_THAT(supervisor_->why_lost(), HasSubstr("does not read"));
}

}  // namespace
}  // namespace cadre::agent
