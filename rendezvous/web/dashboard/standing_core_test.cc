// Questions to a core that does not come to them, as its disk stands still, from readers who do not
// wait for the answers.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/web/dashboard/agent_logs.h"
#include "rendezvous/web/dashboard/dashboard.h"
#include "rendezvous/web/dashboard/event_streams.h"
#include "rendezvous/web/http/reader_for_test.h"

namespace cadre::web {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kPatience = absl::Seconds(20);
// More than there is room for.
constexpr size_t kQuestions = kHttpAnswersMax + kHttpAnswersMax / 2;

class StandingCoreTest : public ::testing::Test {
 protected:
  StandingCoreTest() {
    auto dashboard = Dashboard::Start({}, [this] { return Core(); });
    EXPECT_OK(dashboard);
    dashboard_ = *std::move(dashboard);
  }
  ~StandingCoreTest() override {
    // So that a test that fails ends.
    if (!goes_on_.HasBeenNotified()) goes_on_.Notify();
    Hold(false);
  }

  // The core comes to nothing until GoOn.
  void StandStill() {
    absl::Notification stands;
    core_.AskHealth([this, &stands](const absl::Status&) {
      stands.Notify();
      goes_on_.WaitForNotification();
    });
    stands.WaitForNotification();
  }
  // All answers come while the dashboard's thread does something else, which is as fast as they
  // can come.
  void GoOn() {
    Hold(true);
    const size_t before = looks();
    const std::unique_ptr<ReaderForTest> any = Ask("/healthz");
    AwaitLooks(before + 1);
    goes_on_.Notify();
    EXPECT_OK(core_.AllStatuses());
    Hold(false);
  }
  // Each leaves when its question has been taken.
  void AskAndLeave(const std::string& path) {
    for (size_t i = 0; i < kQuestions; ++i) {
      const size_t before = looks();
      const std::unique_ptr<ReaderForTest> reader = Ask(path);
      AwaitLooks(before + 1);
    }
  }
  std::unique_ptr<ReaderForTest> Ask(const std::string& path) {
    auto reader = std::make_unique<ReaderForTest>(dashboard_->port());
    reader->Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    return reader;
  }
  static void ExpectEvents(ReaderForTest& follower) {
    for (const char* event : {"event: jobs\n", "event: nodes\n"}) {
      EXPECT_TRUE(follower.Await(event)) << event;
    }
  }

  // On the dashboard's thread, whenever it has something to ask.
  std::shared_ptr<host::CoreThread> Core() {
    const absl::MutexLock lock(&mutex_);
    ++looks_;
    const auto goes_on = [this] { return !held_; };
    mutex_.Await(absl::Condition(&goes_on));
    return std::shared_ptr<host::CoreThread>(std::shared_ptr<void>(), &core_);
  }
  void Hold(bool held) {
    const absl::MutexLock lock(&mutex_);
    held_ = held;
  }
  size_t looks() {
    const absl::MutexLock lock(&mutex_);
    return looks_;
  }
  void AwaitLooks(size_t number) {
    const absl::MutexLock lock(&mutex_);
    const auto there = [this, number] { return looks_ >= number; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), kPatience));
  }

  absl::Mutex mutex_;
  size_t looks_ = 0;
  bool held_ = false;
  absl::Notification goes_on_;
  host::CoreThread core_{host::NewCoreConfig()};
  std::unique_ptr<Dashboard> dashboard_;
};

TEST_F(StandingCoreTest, StrangersWhoAskForItsHealthTakeNoAnswerFromOthers) {
  StandStill();
  AskAndLeave("/healthz");
  const auto follower = Ask("/api/events");
  EXPECT_TRUE(follower->Await("\r\n\r\n"));
  const auto jobs = Ask("/api/jobs"), health = Ask("/healthz"), another = Ask("/healthz");
  GoOn();
  EXPECT_THAT(jobs->All(), AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("{\"jobs\":[]}")));
  for (const auto* reader : {&health, &another}) {
    EXPECT_THAT((*reader)->All(), HasSubstr("\r\n\r\nok\n"));
  }
  ExpectEvents(*follower);
}

TEST_F(StandingCoreTest, ReadersWhoAskAndLeaveStopNoView) {
  StandStill();
  AskAndLeave("/api/jobs");
  EXPECT_THAT(Ask("/api/jobs")->All(), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("too much")));
  const auto follower = Ask("/api/events");
  EXPECT_TRUE(follower->Await("\r\n\r\n"));
  GoOn();
  ExpectEvents(*follower);
}

// A follower that Begin lets in, and who only counts.
class FakeExchange final : public HttpExchange {
 public:
  void Reply(int, absl::string_view, absl::string_view) override {}
  bool Begin(absl::string_view) override { return true; }
  void Write(absl::string_view) override {}
  void End() override {}
  bool closed() const override { return false; }
  size_t waiting() const override { return 0; }
};

TEST(PlacesTest, WhatFollowsAsksAgainWhenThereIsAPlaceForTheAnswer) {
  host::CoreThread core(host::NewCoreConfig());
  const Serving serving = [&core] {
    return std::shared_ptr<host::CoreThread>(std::shared_ptr<void>(), &core);
  };
  std::atomic<int> answers{0};
  bool room = false;
  const HttpServer::Places places = [&]() -> HttpServer::Poster {
    if (!room) return nullptr;
    return [&answers](const std::function<void()>&) { ++answers; };
  };
  EventStreams events(serving, places);
  AgentLogs logs(serving, places);
  events.Add(std::make_shared<FakeExchange>(), "job", Bearer());
  logs.Add(std::make_shared<FakeExchange>(), v1::ReadLogRequest());
  for (const int expected : {0, 4}) {
    room = expected > 0;
    events.Tick();
    logs.Tick();
    EXPECT_OK(core.AllStatuses());
    EXPECT_EQ(answers, expected);
  }
}

}  // namespace
}  // namespace cadre::web
