#include "launcher/attach/launcher_links.h"

#include <stdlib.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/versions.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A link whose callbacks the test calls.
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
    const char* const before = getenv("HOME");
    if (before != nullptr) home_before_ = before;
    setenv("HOME", home.c_str(), 1);
    board_.emplace(*LaunchBoard::Open("slurm-1.0"));
    std::ofstream(board_->TokenFile()) << "token";
    verdict_.set_job("j");
    verdict_.set_outcome(v1::FAILED);
    verdict_.set_exit_status(7);
  }
  void TearDown() override {
    std::filesystem::remove_all(home_);
    unsetenv("HOME");
    if (home_before_.has_value()) setenv("HOME", home_before_->c_str(), 1);
  }

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
  std::optional<std::string> home_before_;
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
  ASSERT_OK(board_->RecordEnd(verdict_));
  from_.on_down(absl::UnavailableError("nobody there"));
  EXPECT_THAT(heard_, ElementsAre("nobody there", "ended 7"));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("job j ended before this node joined (failed)")));
  EXPECT_FALSE(std::filesystem::exists(board_->TokenFile())) << "nobody else removes it";
}

TEST_F(LaunchLinkTest, WhoWasCutOffHearsItToo) {
  Start();
  from_.on_up(1);
  ASSERT_OK(board_->RecordEnd(verdict_));
  from_.on_down(absl::UnavailableError("broken"));
  EXPECT_THAT(heard_, ElementsAre("up", "broken", "ended 7"));
  from_.on_down(absl::UnavailableError("nobody there"));
  EXPECT_EQ(said_.size(), 1u);
}

TEST_F(LaunchLinkTest, WhoTookPartInItHearsOfNoEnd) {
  ASSERT_OK(board_->RecordEnd(verdict_));
  board_->NoteTakenPart("n2");
  Start();
  from_.on_down(absl::UnavailableError("nobody there"));
  EXPECT_THAT(heard_, ElementsAre("nobody there"));
}

// This must also hold if the user gave a token: then nodes connect to the first node without
// reading the board first.
TEST_F(LaunchLinkTest, WhoFindsNoServerHearsWhyThereIsNone) {
  Start();
  from_.on_down(absl::UnavailableError("nobody there"));
  board_->PublishFailure("no such script");
  from_.on_down(absl::UnavailableError("nobody there"));
  EXPECT_THAT(
      heard_,
      ElementsAre(
          "nobody there",
          "ended 69: the node that is to serve the rendezvous cannot serve it: no such script"));
  EXPECT_THAT(said_, IsEmpty()) << "the verdict says it";
}

TEST_F(LaunchLinkTest, WhereAnotherServerWasNamed_TheFirstNodeIsOneLikeAnyOther) {
  Start(/*launch_serves=*/false);
  board_->PublishFailure("no such script");
  from_.on_down(absl::UnavailableError("nobody there"));
  EXPECT_THAT(heard_, ElementsAre("nobody there"));
}

TEST_F(LaunchLinkTest, WhoHasBeenThereDoesNotHearOfTheStart) {
  Start();
  from_.on_up(1);
  board_->PublishFailure("of another run");
  from_.on_down(absl::UnavailableError("broken"));
  EXPECT_THAT(heard_, ElementsAre("up", "broken"));
}

// Collects the link's events, and waits for them.
struct Heard {
  std::mutex mutex;
  std::condition_variable changed;
  int ups = 0;
  std::vector<v1::ServerMessage> messages;
  std::vector<absl::Status> downs;

  agent::LinkCallbacks Callbacks() {
    agent::LinkCallbacks callbacks;
    callbacks.on_up = [this](uint64_t) {
      std::lock_guard<std::mutex> lock(mutex);
      ++ups;
    };
    callbacks.on_message = [this](v1::ServerMessage message) {
      std::lock_guard<std::mutex> lock(mutex);
      messages.push_back(std::move(message));
      changed.notify_all();
    };
    callbacks.on_down = [this](absl::Status status) {
      std::lock_guard<std::mutex> lock(mutex);
      downs.push_back(std::move(status));
      changed.notify_all();
    };
    return callbacks;
  }
  template <typename Done>
  bool WaitFor(Done done) {
    std::unique_lock<std::mutex> lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(10), [&] { return done(*this); });
  }
};

v1::NodeMessage Join() {
  v1::NodeMessage message;
  message.set_job("a");
  message.set_incarnation(7);
  v1::Join& join = *message.mutable_join();
  join.set_node("n0");
  join.set_host("n0");
  join.set_address("127.0.0.1");
  join.set_slots(1);
  join.set_wanted_node_rank(-1);
  join.set_held_port(1234);
  *join.mutable_version() = rpc::ThisVersion();
  v1::JobSpec& spec = *join.mutable_spec();
  spec.set_name("a");
  spec.add_command("x");
  spec.mutable_nodes()->set_min(1);
  spec.mutable_nodes()->set_max(1);
  return message;
}

TEST(EmbeddedLinkTest, Join_IsWelcomedAndAssigned) {
  host::CoreThread core(host::NewCoreConfig());
  Heard heard;
  auto link = MakeEmbeddedLink(core);
  link->Start(heard.Callbacks());
  EXPECT_EQ(heard.ups, 1);
  link->Send(1, Join());
  EXPECT_TRUE(heard.WaitFor([](Heard& h) {
    for (const v1::ServerMessage& message : h.messages) {
      if (message.has_assign()) return true;
    }
    return false;
  }));
  EXPECT_TRUE(heard.messages.front().has_welcome());
  link->Stop();
}

TEST(EmbeddedLinkTest, AfterStop_NothingIsHeard) {
  host::CoreThread core(host::NewCoreConfig());
  Heard heard;
  auto link = MakeEmbeddedLink(core);
  link->Start(heard.Callbacks());
  link->Stop();
  const size_t before = heard.messages.size();
  link->Send(1, Join());
  EXPECT_TRUE(core.AllStatuses().ok());  // returns after everything that was posted before it
  EXPECT_EQ(heard.messages.size(), before);
  EXPECT_TRUE(heard.downs.empty());
}

TEST(EmbeddedLinkTest, CoreEnds_LinkGoesDown) {
  Heard heard;
  auto core = std::make_unique<host::CoreThread>(host::NewCoreConfig());
  auto link = MakeEmbeddedLink(*core);
  link->Start(heard.Callbacks());
  v1::NodeMessage renew;
  renew.set_job("a");
  renew.mutable_renew();
  // The stream's first message must be a Join: the core closes it.
  link->Send(1, renew);
  EXPECT_TRUE(heard.WaitFor([](Heard& h) { return !h.downs.empty(); }));
  link->Stop();
}

}  // namespace
}  // namespace cadre::launcher
