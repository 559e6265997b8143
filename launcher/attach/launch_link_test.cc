#include "launcher/attach/launch_link.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

class LaunchLinkTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string home = testing::TempDir() + "/launch_XXXXXX";
    ASSERT_NE(mkdtemp(home.data()), nullptr);
    home_ = home;
    setenv("HOME", home.c_str(), 1);
    board_.emplace(*LaunchBoard::Open("slurm-1.0"));
    std::ofstream(board_->TokenFile()) << "token";
    verdict_.set_job("j");
    verdict_.set_outcome(v1::FAILED);
    verdict_.set_exit_status(7);
  }
  void TearDown() override { std::filesystem::remove_all(home_); }

  void Start(bool launch_serves = true) {
    link_ = MakeLaunchLink(
        std::make_unique<HandLink>(&from_), *board_,
        {"n2", "j", launch_serves, [this](const std::string& line) { said_.push_back(line); }});
    agent::LinkCallbacks callbacks;
    callbacks.on_up = [this](uint64_t) { heard_.push_back("up"); };
    callbacks.on_message = [this](const v1::ServerMessage& message) {
      const v1::Verdict& verdict = message.finished().verdict();
      heard_.push_back("ended " + std::to_string(verdict.exit_status()) +
                       (verdict.message().empty() ? "" : ": " + verdict.message()));
    };
    callbacks.on_down = [this](const absl::Status& status) {
      heard_.emplace_back(status.message());
    };
    link_->Start(std::move(callbacks));
  }

  std::string home_;
  std::optional<LaunchBoard> board_;
  v1::Verdict verdict_;
  agent::LinkCallbacks from_;
  std::unique_ptr<agent::ServerLink> link_;
  std::vector<std::string> heard_, said_;
};

TEST_F(LaunchLinkTest, WhoFindsNoServerHearsTheEnd) {
  Start();
  from_.on_down(absl::UnavailableError("nobody there"));
  EXPECT_THAT(heard_, ElementsAre("nobody there"));
  ASSERT_OK(board_->Ended(verdict_));
  from_.on_down(absl::UnavailableError("nobody there"));
  EXPECT_THAT(heard_, ElementsAre("nobody there", "ended 7"));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("job j had ended before this node came (failed)")));
  EXPECT_FALSE(std::filesystem::exists(board_->TokenFile())) << "nobody else removes it";
}

TEST_F(LaunchLinkTest, WhoWasCutOffHearsItToo) {
  Start();
  from_.on_up(1);
  ASSERT_OK(board_->Ended(verdict_));
  from_.on_down(absl::UnavailableError("broken"));
  EXPECT_THAT(heard_, ElementsAre("up", "broken", "ended 7"));
  from_.on_down(absl::UnavailableError("nobody there"));
  EXPECT_EQ(said_.size(), 1u);
}

TEST_F(LaunchLinkTest, WhoTookPartInItHearsOfNoEnd) {
  ASSERT_OK(board_->Ended(verdict_));
  board_->NoteTakenPart("n2");
  Start();
  from_.on_down(absl::UnavailableError("nobody there"));
  EXPECT_THAT(heard_, ElementsAre("nobody there"));
}

// With a token of the user's own too, by which nodes go to the first one unasked.
TEST_F(LaunchLinkTest, WhoFindsNoServerHearsWhyThereIsNone) {
  Start();
  from_.on_down(absl::UnavailableError("nobody there"));
  board_->Fails("no such script");
  from_.on_down(absl::UnavailableError("nobody there"));
  EXPECT_THAT(heard_, ElementsAre("nobody there",
                                  "ended 69: the node that is to serve the "
                                  "rendezvous cannot: no such script"));
  EXPECT_THAT(said_, IsEmpty()) << "the verdict says it";
}

TEST_F(LaunchLinkTest, WhereAnotherServerWasNamed_TheFirstNodeIsOneLikeAnyOther) {
  Start(/*launch_serves=*/false);
  board_->Fails("no such script");
  from_.on_down(absl::UnavailableError("nobody there"));
  EXPECT_THAT(heard_, ElementsAre("nobody there"));
}

TEST_F(LaunchLinkTest, WhoHasBeenThereDoesNotHearOfTheStart) {
  Start();
  from_.on_up(1);
  board_->Fails("of another run");
  from_.on_down(absl::UnavailableError("broken"));
  EXPECT_THAT(heard_, ElementsAre("up", "broken"));
}

}  // namespace
}  // namespace cadre::launcher
