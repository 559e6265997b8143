#include "launcher/attach/launch_end.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A link that the test drives.
class HandLink : public agent::ServerLink {
 public:
  explicit HandLink(agent::LinkCallbacks* callbacks) : callbacks_(*callbacks) {}
  void Start(agent::LinkCallbacks callbacks) override { callbacks_ = std::move(callbacks); }
  void Send(uint64_t, v1::NodeMessage) override {}
  void Stop() override {}

 private:
  agent::LinkCallbacks& callbacks_;
};

class LaunchEndTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    token_ = directory_ + "/slurm-1.0.token";
    std::ofstream(token_) << "token";
    verdict_.set_job("j");
    verdict_.set_outcome(v1::FAILED);
    verdict_.set_exit_status(7);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Start() {
    link_ = MakeLaunchLink(std::make_unique<HandLink>(&from_), token_,
                           [this](const std::string& line) { said_.push_back(line); });
    agent::LinkCallbacks callbacks;
    callbacks.on_up = [this](uint64_t) { heard_.push_back("up"); };
    callbacks.on_message = [this](const v1::ServerMessage& message) {
      heard_.push_back("ended " + std::to_string(message.finished().verdict().exit_status()));
    };
    callbacks.on_down = [this](const absl::Status& status) {
      heard_.emplace_back(status.message());
    };
    link_->Start(std::move(callbacks));
  }
  static void MakeOld(const std::string& path) {
    const timespec then = absl::ToTimespec(absl::Now() - kLaunchEndKept - absl::Minutes(1));
    const timespec times[] = {then, then};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }

  std::string directory_ = testing::TempDir() + "/launch_XXXXXX";
  std::string token_;
  v1::Verdict verdict_;
  agent::LinkCallbacks from_;
  std::unique_ptr<agent::ServerLink> link_;
  std::vector<std::string> heard_, said_;
};

TEST_F(LaunchEndTest, WhoFindsNoServerHearsTheEnd) {
  Start();
  from_.on_down(absl::UnavailableError("nobody there"));
  EXPECT_THAT(heard_, ElementsAre("nobody there"));
  ASSERT_OK(LeaveLaunchEnd(token_, verdict_));
  from_.on_down(absl::UnavailableError("nobody there"));
  EXPECT_THAT(heard_, ElementsAre("nobody there", "ended 7"));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("job j had ended before this node came (failed)")));
  EXPECT_FALSE(std::filesystem::exists(token_)) << "nobody else removes it";
}

TEST_F(LaunchEndTest, WhoWasCutOffHearsItToo) {
  Start();
  from_.on_up(1);
  ASSERT_OK(LeaveLaunchEnd(token_, verdict_));
  from_.on_down(absl::UnavailableError("broken"));
  EXPECT_THAT(heard_, ElementsAre("up", "broken", "ended 7"));
  from_.on_down(absl::UnavailableError("nobody there"));
  EXPECT_EQ(said_.size(), 1u);
}

TEST_F(LaunchEndTest, AnotherLaunchsEndIsNobodysBusiness) {
  ASSERT_OK(LeaveLaunchEnd(directory_ + "/slurm-1.0.r1.token", verdict_));
  EXPECT_THAT(FindLaunchEnd(token_), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(LaunchEndTest, OldOnesAreNotBelievedAndRemoved) {
  ASSERT_OK(LeaveLaunchEnd(token_, verdict_));
  EXPECT_OK(FindLaunchEnd(token_));
  MakeOld(directory_ + "/slurm-1.0.ended");
  EXPECT_THAT(FindLaunchEnd(token_), StatusIs(absl::StatusCode::kNotFound));
  MakeOld(token_);
  ASSERT_OK(LeaveLaunchEnd(directory_ + "/slurm-2.0.token", verdict_));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/slurm-1.0.ended"));
  EXPECT_TRUE(std::filesystem::exists(token_)) << "its launch may be running";
}

TEST_F(LaunchEndTest, WhoServesBeginsWithoutOne) {
  ASSERT_OK(LeaveLaunchEnd(token_, verdict_));
  RemoveLaunchEnd(token_);
  EXPECT_THAT(FindLaunchEnd(token_), StatusIs(absl::StatusCode::kNotFound));
}

// A script that calls `cadre run` twice in one step.
TEST_F(LaunchEndTest, WhoTookPartIsNotTooLateForTheNextRun) {
  ASSERT_OK(LeaveLaunchEnd(token_, verdict_));
  NoteTakenPart(token_, "n1");
  EXPECT_TRUE(HasTakenPart(token_, "n1"));
  EXPECT_FALSE(HasTakenPart(token_, "n2"));
  EXPECT_FALSE(HasTakenPart(directory_ + "/slurm-1.0.r1.token", "n1"));
}

TEST_F(LaunchEndTest, WhatIsBrokenIsNoEnd) {
  std::ofstream(directory_ + "/slurm-1.0.ended") << "\xff\xff";
  EXPECT_THAT(FindLaunchEnd(token_), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace cadre::launcher
