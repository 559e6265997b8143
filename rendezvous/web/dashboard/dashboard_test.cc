#include "rendezvous/web/dashboard/dashboard.h"

#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"
#include "base/token.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/web/dashboard/dashboard_rig.h"
#include "rendezvous/web/dashboard/event_streams.h"
#include "rendezvous/web/dashboard/worker_logs.h"
#include "rendezvous/web/http/reader_for_test.h"

namespace cadre::web {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using DashboardTest = DashboardRig;

TEST_F(DashboardTest, ThePageAndWhatItNames) {
  Start();
  const std::string page = Get("/");
  EXPECT_THAT(page, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("text/html"),
                          HasSubstr("<title>Cadre</title>")));
  for (const char* file : {"/style.css", "/icon.svg", "/main.js", "/dom.js", "/events.js",
                           "/job.js", "/pictures.js", "/logs.js", "/cluster.js", "/stacks.js",
                           "/charts.js", "/compare.js", "/history.js", "/uplot.css"}) {
    EXPECT_THAT(Get(file), StartsWith("HTTP/1.1 200 ")) << file;
  }
  // Copies of the library must contain its licence.
  EXPECT_THAT(Get("/uplot.js"),
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("script-src 'self';"),
                    HasSubstr("Permission is hereby granted"), HasSubstr("var uPlot=")));
  EXPECT_THAT(Get("/nothing"), StartsWith("HTTP/1.1 404 "));
}

TEST_F(DashboardTest, HowBusyTheNodesAre) {
  Start();
  AddJob();
  EXPECT_EQ(Body(Get("/api/jobs/job/usage"))["nodes"].size(), 0u);
  v1::NodeMessage renew = host::JoinForTest("node", 2, 2);
  renew.clear_join();
  v1::NodeUsage* usage = renew.mutable_renew()->mutable_usage();
  usage->set_cpu(0.5);
  usage->set_memory_used(1 << 20);
  usage->set_memory_total(4 << 20);
  ASSERT_OK(core_.Post(stream_, renew));
  const nlohmann::json node = Body(Get("/api/jobs/job/usage"))["nodes"][0];
  EXPECT_EQ(node["node"], "node");
  EXPECT_EQ(node["cpu"][0], 0.5);
  EXPECT_EQ(node["memory"][0], 0.25);
  EXPECT_EQ(node["gpu"].size(), 0u);
  EXPECT_THAT(Get("/api/jobs/none/usage"), StartsWith("HTTP/1.1 404 "));
}

TEST_F(DashboardTest, JobsMetricsAndHealth) {
  Start();
  AddJob();
  EXPECT_THAT(Get("/healthz"), HasSubstr("\r\n\r\nok\n"));
  EXPECT_THAT(
      Get("/metrics"),
      AllOf(HasSubstr("text/plain; version=0.0.4"), HasSubstr("\ncadre_leads 1\n"),
            HasSubstr("\ncadre_jobs{phase=\"gathering\"} 1\n"), HasSubstr("\ncadre_streams 1\n"),
            HasSubstr("\ncadre_node_messages_total{kind=\"join\"} 1\n")));
  EXPECT_EQ(Body(Get("/api/jobs"))["jobs"][0]["name"], "job");
  EXPECT_EQ(Body(Get("/api/jobs/job"))["nodes"][0]["name"], "node");
  for (const char* path : {"/api/jobs/none", "/api/jobs/job/x", "/api/jobs/..", "/api/jobs/"}) {
    EXPECT_THAT(Get(path), StartsWith("HTTP/1.1 404 ")) << path;
  }
}

TEST_F(DashboardTest, InReserve) {
  in_reserve_ = true;
  Start();
  EXPECT_THAT(Get("/healthz"), HasSubstr("ok, in reserve"));
  EXPECT_THAT(Get("/metrics"), AllOf(HasSubstr("\ncadre_leads 0\n"), Not(HasSubstr("_jobs"))));
  EXPECT_THAT(Get("/api/jobs"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("in reserve")));
}

TEST_F(DashboardTest, ATokenIsWantedForAllThatSpeaksOfJobs) {
  DashboardOptions options;
  options.token = kToken;
  Start(options);
  AddJob();
  for (const char* path :
       {"/metrics", "/api/jobs", "/api/jobs/job", "/api/events", "/api/jobs/job/logs",
        "/api/jobs/job/log", "/api/jobs/job/stacks", "/api/jobs/job/usage", "/api/nodes"}) {
    EXPECT_THAT(Get(path), AllOf(StartsWith("HTTP/1.1 401 "), Not(HasSubstr("gathering")))) << path;
    EXPECT_THAT(Get(path, "Authorization: Bearer 0123456789abcdeX\r\n"),
                StartsWith("HTTP/1.1 401 "))
        << path;
  }
  EXPECT_THAT(Get("/metrics", absl::StrCat("Authorization: Bearer ", kToken, "\r\n")),
              StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Get("/"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(DashboardTest, WithoutATokenOnlyUnderLoopbacksNames) {
  Start();
  EXPECT_THAT(Get("/api/jobs", "Host: rebound.example\r\n"), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(Get("/api/jobs", absl::StrCat("Host: 127.0.0.1:", dashboard_->port(), "\r\n")),
              StartsWith("HTTP/1.1 200 "));
  DashboardOptions everywhere;
  everywhere.host = "0.0.0.0";
  EXPECT_THAT(Dashboard::Start(everywhere, [] { return absl::UnavailableError(""); }).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--token-file")));
}

TEST_F(DashboardTest, ChangesArePushed_AndTheEndToo) {
  Start();
  ReaderForTest reader(dashboard_->port());
  reader.Send("GET /api/events?job=job HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(reader.Await("event: jobs\ndata: {\"jobs\":[]}\n\n"));
  EXPECT_TRUE(reader.Await("event: job\ndata: null\n\n"));
  AddJob();
  EXPECT_TRUE(reader.Await("event: job\ndata: {\"name\":\"job\",\"phase\":\"GATHERING\""));
  ASSERT_OK(core_.Cancel("job", "enough", 0));
  dashboard_->Finish(absl::Seconds(20));
  EXPECT_THAT(reader.All(), HasSubstr("\"phase\":\"CANCELLED_PHASE\""));
}

TEST_F(DashboardTest, OutputIsFollowed_WhereItIsHere) {
  std::string dir = testing::TempDir() + "/logs_XXXXXX";
  ASSERT_NE(mkdtemp(&dir[0]), nullptr);
  DashboardOptions options;
  options.log_dir = dir;
  Start(options);
  EXPECT_EQ(Body(Get("/api/jobs/job/logs"))["generations"].size(), 0u);
  ReaderForTest reader(dashboard_->port());
  reader.Send(
      "GET /api/jobs/job/log?generation=1&rank=0&stream=stdout HTTP/1.1\r\nHost: localhost\r\n"
      "\r\n");
  EXPECT_TRUE(reader.Await("\r\n\r\n"));
  const std::string rank = dir + "/job/generation_1/rank_0";
  std::filesystem::create_directories(rank);
  std::ofstream log(rank + "/stdout.log");
  log << "first line\n" << std::flush;
  EXPECT_TRUE(reader.Await("first line\n"));
  log << "second line\n" << std::flush;
  EXPECT_TRUE(reader.Await("second line\n"));
  EXPECT_EQ(Body(Get("/api/jobs/job/logs"))["generations"][0]["ranks"][0], 0);
  // Only regular files are read.
  std::filesystem::create_symlink("/etc/passwd", rank + "/stderr.log");
  ReaderForTest link(dashboard_->port());
  link.Send(
      "GET /api/jobs/job/log?generation=1&rank=0&stream=stderr HTTP/1.1\r\nHost: localhost\r\n"
      "\r\n");
  log << "third line\n" << std::flush;
  EXPECT_TRUE(reader.Await("third line\n"));
  dashboard_->Finish(absl::Seconds(20));
  EXPECT_THAT(link.All(),
              AllOf(Not(HasSubstr("root:")), HasSubstr("(cannot read job/generation_1")));
}

TEST_F(DashboardTest, TheClustersNodes) {
  Start();
  ReaderForTest reader(dashboard_->port());
  reader.Send("GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(reader.Await("event: nodes\ndata: {\"nodes\":[]}\n\n"));
  AddSubmittedJob();
  EXPECT_TRUE(reader.Await("event: nodes\ndata: {\"nodes\":[{\"name\":\"node\""));
  const nlohmann::json node = Body(Get("/api/nodes"))["nodes"][0];
  EXPECT_EQ(node["labels"]["switch"], "s1");
  EXPECT_EQ(node["parts"][0]["job"], "job");
  EXPECT_EQ(Body(Get("/api/jobs"))["jobs"][0]["user"], "ann");
  dashboard_->Finish(absl::Seconds(20));
}

TEST_F(DashboardTest, OutputOfASubmittedJobComesThroughItsAgent) {
  // Only the end of the existing output is sent.
  agent_->Append(std::string(kTailBytes, 'x') + "the end\n");
  Start();
  AddSubmittedJob();
  EXPECT_EQ(Body(Get("/api/jobs/job/logs"))["generations"],
            nlohmann::json::parse("[{\"generation\": 1, \"ranks\": [0, 1]}]"));
  ReaderForTest reader(dashboard_->port());
  reader.Send(
      "GET /api/jobs/job/log?generation=1&rank=1&stream=stdout HTTP/1.1\r\nHost: localhost\r\n"
      "\r\n");
  EXPECT_TRUE(reader.Await("xthe end\n"));
  agent_->Append("and more\n");
  EXPECT_TRUE(reader.Await("xthe end\nand more\n"));
  // More than is sent at one tick.
  agent_->Append(std::string(kTailBytesPerTick + 1, 'y') + "\nlast\n");
  EXPECT_TRUE(reader.Await("y\nlast\n"));
  EXPECT_THAT(Get("/api/jobs/job/log?generation=1&rank=x&stream=stdout"),
              AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("rank=")));
  dashboard_->Finish(absl::Seconds(20));
  EXPECT_THAT(reader.All(), Not(HasSubstr(std::string(kTailBytes - 7, 'x'))));
}

TEST_F(DashboardTest, OutputEndsWhenNothingIsAddedAnyMore_AndSaysWhatIsRefused) {
  agent_->Append("all of it\n");
  Start();
  AddSubmittedJob();
  const std::string path = "/api/jobs/job/log?generation=1&rank=1&stream=stdout";
  ReaderForTest reader(dashboard_->port());
  reader.Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  EXPECT_TRUE(reader.Await("all of it\n"));
  ASSERT_OK(core_.Cancel("job", "enough", 0));
  v1::NodeMessage stopped = host::JoinForTest("node", 1, 1);
  stopped.clear_join();
  stopped.set_generation(1);
  stopped.mutable_node_stopped();
  ASSERT_OK(core_.Post(stream_, stopped));
  // The last output comes after the verdict.
  agent_->Append("last words\n");
  EXPECT_TRUE(reader.Await("last words\n"));
  core_.CloseStream(stream_);
  agent_->EndPart();
  // The stream ends although no reader leaves.
  EXPECT_THAT(reader.All(), HasSubstr("all of it\n"));
  agent_->Refuse("not yours");
  EXPECT_THAT(Get(path), AllOf(StartsWith("HTTP/1.1 403 "), HasSubstr("not yours")));
}

TEST_F(DashboardTest, WhereTheRanksAre) {
  Start();
  const auto node = std::make_shared<NodeForTest>(core_);
  node->Join(node);
  ASSERT_EQ(core_.Status("job")->world_size(), 2u);
  const nlohmann::json all = Body(Get("/api/jobs/job/stacks"));
  ASSERT_EQ(all["groups"].size(), 1u) << all;
  EXPECT_EQ(all["groups"][0]["ranks"], nlohmann::json::parse("[0, 1]"));
  EXPECT_EQ(all["groups"][0]["first"]["frames"][0]["function"], "all_reduce");
  EXPECT_EQ(Body(Get("/api/jobs/job/stacks?rank=1"))["groups"][0]["ranks"],
            nlohmann::json::parse("[1]"));
  EXPECT_THAT(Get("/api/jobs/job/stacks?rank=x"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Get("/api/jobs/job/stacks?rank=2"),
              AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("no rank 2")));
  EXPECT_THAT(Get("/api/jobs/none/stacks"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Get("/api/jobs/job/stacks", "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n"),
              StartsWith("HTTP/1.1 403 "));
  dashboard_->Finish(absl::Seconds(20));
}

TEST_F(DashboardTest, WithoutALogDirectoryThatIsSaid) {
  Start();
  EXPECT_THAT(Get("/api/jobs/job/log?generation=1&rank=0&stream=stdout"),
              AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("on their nodes")));
}

// --- which readers see what on the dashboard, by their token ---

using DashboardTokensTest = DashboardRig;

// Fault (access): Several readers with different rights watch the dashboard -> Each receives only
// what it may see
TEST_F(DashboardTokensTest, AReadOnlyTokenShowsJobsAndNodesAndNoOutput) {
  DashboardOptions options;
  options.token = kToken;
  Start(options);
  agent_->Append("what ann wrote\n");
  AddSubmittedJob();
  ASSERT_OK(core_.Cancel("job", "what ann wrote", 0));
  const std::string log = "/api/jobs/job/log?generation=1&rank=1&stream=stdout";
  for (const std::string& token : {Read(), User("bob")}) {
    EXPECT_THAT(GetAs(token, "/metrics"), HasSubstr("\ncadre_jobs{phase=\"stopping\"} 1\n"));
    EXPECT_THAT(GetAs(token, "/api/nodes"), HasSubstr("\"switch\":\"s1\""));
    for (const char* path : {"/api/jobs", "/api/jobs/job"}) {
      EXPECT_THAT(GetAs(token, path),
                  AllOf(HasSubstr("\"user\":\"ann\""), Not(HasSubstr("what ann wrote"))));
    }
    for (const std::string& path :
         {log, std::string("/api/jobs/job/logs"), std::string("/api/jobs/job/stacks"),
          std::string("/api/jobs/none/logs"), std::string("/api/jobs/none/log")}) {
      EXPECT_THAT(GetAs(token, path),
                  AllOf(StartsWith("HTTP/1.1 403 "), Not(HasSubstr("what ann wrote"))))
          << path;
    }
  }
  EXPECT_THAT(GetAs(User("ann"), "/api/jobs/job"), HasSubstr("what ann wrote"));
  // Readers get different data from one update.
  ReaderForTest reader(dashboard_->port()), bob(dashboard_->port()), ann(dashboard_->port());
  const auto follow = [](ReaderForTest& to, const std::string& token) {
    to.Send(absl::StrCat("GET /api/events?job=job HTTP/1.1\r\nAuthorization: Bearer ", token,
                         "\r\n\r\n"));
    EXPECT_TRUE(to.Await("event: job\ndata: {\"name\":\"job\""));
  };
  follow(ann, User("ann"));
  follow(bob, User("bob"));
  follow(reader, Read());
  ReaderForTest output(dashboard_->port());
  output.Send(
      absl::StrCat("GET ", log, " HTTP/1.1\r\nAuthorization: Bearer ", User("ann"), "\r\n\r\n"));
  EXPECT_TRUE(output.Await("what ann wrote\n"));
  dashboard_->Finish(absl::Seconds(20));
  EXPECT_THAT(ann.All(), HasSubstr("what ann wrote"));
  EXPECT_THAT(bob.All(), Not(HasSubstr("what ann wrote")));
  EXPECT_THAT(reader.All(), Not(HasSubstr("what ann wrote")));
}

// All users share 32 streams.
//
// Fault (display): One user opens as many dashboard streams as possible -> That user gets 16, and
// other users get theirs
TEST_F(DashboardTokensTest, OneUsersStreamsLeaveOthersTheirPlaces) {
  DashboardOptions options;
  options.token = kToken;
  Start(options);
  const auto follow = [](ReaderForTest& to, const std::string& token) {
    to.Send(absl::StrCat("GET /api/events HTTP/1.1\r\nAuthorization: Bearer ", token, "\r\n\r\n"));
  };
  std::vector<std::unique_ptr<ReaderForTest>> anns;
  for (size_t i = 0; i < kReadersOfUserMax; ++i) {
    anns.push_back(std::make_unique<ReaderForTest>(dashboard_->port()));
    follow(*anns.back(), User("ann"));
    EXPECT_TRUE(anns.back()->Await("event: jobs"));
  }
  ReaderForTest one_more(dashboard_->port()), bob(dashboard_->port());
  follow(one_more, User("ann"));
  EXPECT_TRUE(
      one_more.Await("user ann: 16 requests to the dashboard are open, which is the limit"));
  follow(bob, User("bob"));
  EXPECT_TRUE(bob.Await("event: jobs"));
  anns.clear();
  dashboard_->Finish(absl::Seconds(20));
}

TEST_F(DashboardTokensTest, TheServersTokenOfNowCounts) {
  std::atomic<bool> replaced{false};
  const std::string after = RandomToken();
  DashboardOptions options;
  options.token = kToken;
  options.token_now = [&] { return replaced ? after : std::string(kToken); };
  Start(options);
  EXPECT_THAT(GetAs(Read(), "/api/jobs"), StartsWith("HTTP/1.1 200 "));
  replaced = true;
  EXPECT_THAT(GetAs(Read(), "/api/jobs"), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(GetAs(after, "/api/jobs"), StartsWith("HTTP/1.1 200 "));
  dashboard_->Finish(absl::Seconds(20));
}

// Fault (access): A token without rights, expired or of another state is shown to the dashboard ->
// It is refused
TEST_F(DashboardTokensTest, TokensThatHaveEndedOrAreOfAnotherStateOpenNothing) {
  DashboardOptions options;
  options.token = kToken;
  Start(options);
  EXPECT_THAT(GetAs(Read(-absl::Seconds(1)), "/metrics"),
              AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("the read-only token expired at ")));
  EXPECT_THAT(
      GetAs(ReadToken(kToken, core_.server_id() + 1, absl::Now() + kTokenLifetime), "/metrics"),
      AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("lost its state")));
  EXPECT_THAT(GetAs(PartToken(kToken, core_.server_id(), 1, "job"), "/api/jobs"),
              StartsWith("HTTP/1.1 403 "));
  in_reserve_ = true;
  EXPECT_THAT(GetAs(Read(), "/metrics"), HasSubstr("\ncadre_leads 0\n"));
}

// --- requests to a core that does not handle them, because its disk hangs, from readers that do
// not wait for the answers ---

constexpr absl::Duration kTimeout = absl::Seconds(20);
// More than there are places.
constexpr size_t kQuestions = kHttpAnswersMax + kHttpAnswersMax / 2;

class StandingCoreTest : public ::testing::Test {
 protected:
  StandingCoreTest() {
    auto dashboard = Dashboard::Start({}, [this] { return Core(); });
    EXPECT_OK(dashboard);
    dashboard_ = *std::move(dashboard);
  }
  ~StandingCoreTest() override {
    // So that a failing test ends.
    if (!goes_on_.HasBeenNotified()) goes_on_.Notify();
    Hold(false);
  }

  // The core handles nothing until Resume.
  void Pause() {
    absl::Notification stands;
    core_.AskHealth([this, &stands](const absl::Status&) {
      stands.Notify();
      goes_on_.WaitForNotification();
    });
    stands.WaitForNotification();
  }
  // All answers come while the dashboard's thread is busy, which is as fast as they can come.
  void Resume() {
    Hold(true);
    const size_t before = looks();
    const std::unique_ptr<ReaderForTest> any = Ask("/healthz");
    AwaitLooks(before + 1);
    goes_on_.Notify();
    EXPECT_OK(core_.AllStatuses());
    Hold(false);
  }
  // Each reader leaves when its request has been taken.
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

  // Called on the dashboard's thread whenever it makes a request.
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
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), kTimeout));
  }

  absl::Mutex mutex_;
  size_t looks_ = 0;
  bool held_ = false;
  absl::Notification goes_on_;
  host::CoreThread core_{host::NewCoreConfig()};
  std::unique_ptr<Dashboard> dashboard_;
};

// Fault (display): A server waits for its disk while clients that do not authenticate request its
// health as often as they like -> One request is under way for all of them, and no other answer is
// dropped
TEST_F(StandingCoreTest, StrangersWhoAskForItsHealthTakeNoAnswerFromOthers) {
  Pause();
  AskAndLeave("/healthz");
  const auto follower = Ask("/api/events");
  EXPECT_TRUE(follower->Await("\r\n\r\n"));
  const auto jobs = Ask("/api/jobs"), health = Ask("/healthz"), another = Ask("/healthz");
  Resume();
  EXPECT_THAT(jobs->All(), AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("{\"jobs\":[]}")));
  for (const auto* reader : {&health, &another}) {
    EXPECT_THAT((*reader)->All(), HasSubstr("\r\n\r\nok\n"));
  }
  ExpectEvents(*follower);
}

// Fault (display): A server waits for its disk while readers request jobs and leave before the
// answer -> At most 256 requests of the dashboard are under way, more get 503, and pushed views
// resume with the server
TEST_F(StandingCoreTest, ReadersWhoAskAndLeaveStopNoView) {
  Pause();
  AskAndLeave("/api/jobs");
  EXPECT_THAT(Ask("/api/jobs")->All(), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("too many")));
  const auto follower = Ask("/api/events");
  EXPECT_TRUE(follower->Await("\r\n\r\n"));
  Resume();
  ExpectEvents(*follower);
}

// A follower that only counts.
class CountedFollower final : public HttpExchange {
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
  events.Add(std::make_shared<CountedFollower>(), "job", Bearer());
  logs.Add(std::make_shared<CountedFollower>(), v1::ReadLogRequest());
  for (const int expected : {0, 4}) {
    room = expected > 0;
    events.Tick();
    logs.Tick();
    EXPECT_OK(core.AllStatuses());
    EXPECT_EQ(answers, expected);
  }
}

// --- unread bytes of readers that do not read ---

// A reader that reads when the test tells it to.
class SlowReader final : public HttpExchange {
 public:
  void Reply(int, absl::string_view, absl::string_view) override { closed_ = true; }
  bool Begin(absl::string_view) override { return true; }
  void Write(absl::string_view bytes) override { absl::StrAppend(&waiting_, bytes); }
  void End() override { closed_ = true; }
  bool closed() const override { return closed_; }
  size_t waiting() const override { return waiting_.size(); }

  void Read() { absl::StrAppend(&read_, std::exchange(waiting_, "")); }
  const std::string& read() const { return read_; }

 private:
  std::string waiting_, read_;
  bool closed_ = false;
};

HttpServer::Poster Here() {
  return [](const std::function<void()>& task) { task(); };
}

TEST(SlowReadersTest, AFileIsReadAsFastAsItsReaderReadsAndNothingIsLeftOut) {
  std::string root = testing::TempDir() + "/tails_XXXXXX";
  ASSERT_NE(mkdtemp(&root[0]), nullptr);
  LogTails tails(root);
  const auto reader = std::make_shared<SlowReader>();
  tails.Add(reader, "log");
  std::string text;
  for (int line = 0; text.size() < 16 * kTailBytesPerTick; ++line) {
    absl::StrAppend(&text, "line ", line, "\n");
  }
  // For an existing file only its end would be shown.
  std::ofstream log(root + "/log");
  log << std::flush;
  tails.Tick();
  log << text << std::flush;
  for (int tick = 0; tick < 20; ++tick) tails.Tick();
  EXPECT_GT(reader->waiting(), 0u);
  EXPECT_LE(reader->waiting(), 2 * kTailBytesPerTick);
  for (int tick = 0; tick < 40 && reader->read().size() < text.size(); ++tick) {
    reader->Read();
    tails.Tick();
  }
  EXPECT_TRUE(reader->read() == text);
}

TEST(SlowReadersTest, NoAgentIsAskedForAReaderThatIsBehind) {
  int asked = 0;
  const Serving serving = [&]() -> absl::StatusOr<std::shared_ptr<host::CoreThread>> {
    ++asked;
    return absl::UnavailableError("in reserve");
  };
  AgentLogs logs(serving, Here);
  const auto reader = std::make_shared<SlowReader>();
  logs.Add(reader, v1::ReadLogRequest());
  logs.Tick();
  EXPECT_EQ(asked, 2);
  reader->Write(std::string(kTailBytesPerTick, 'x'));
  logs.Tick();
  EXPECT_EQ(asked, 2);
  reader->Read();
  logs.Tick();
  EXPECT_EQ(asked, 3);
}

TEST(SlowReadersTest, AReaderThatIsBehindIsToldTheNewestStateOnceItReads) {
  int state = 0;
  const Serving serving = [&]() -> absl::StatusOr<std::shared_ptr<host::CoreThread>> {
    return absl::UnavailableError(absl::StrCat("state ", state, std::string(kBehindBytes, '.')));
  };
  EventStreams events(serving, Here);
  const auto reader = std::make_shared<SlowReader>();
  events.Add(reader, "", Bearer());
  const size_t first = reader->waiting();
  EXPECT_GT(first, 0u);
  for (state = 1; state < 100; ++state) events.Tick();
  EXPECT_EQ(reader->waiting(), first);
  reader->Read();
  state = 100;
  events.Tick();
  reader->Read();
  EXPECT_TRUE(absl::StrContains(reader->read(), "state 0."));
  EXPECT_TRUE(absl::StrContains(reader->read(), "state 100."));
  EXPECT_FALSE(absl::StrContains(reader->read(), "state 50."));
}

// Fault (display): The list of jobs is larger than the 8 MiB that may wait for a reader of the
// dashboard -> The reader gets the whole list, and later changes once it has read that
TEST(SlowReadersTest, WhoIsToldVeryMuchIsToldTheRestWithTheNextTick) {
  EventStreams events([] { return absl::UnavailableError(std::string(kHttpStreamBytesMax, '.')); },
                      Here);
  const auto reader = std::make_shared<SlowReader>();
  events.Add(reader, "", Bearer());
  // The jobs were sent, and the nodes not yet.
  EXPECT_GT(reader->waiting(), kHttpStreamBytesMax);
  EXPECT_LT(reader->waiting(), 2 * kHttpStreamBytesMax);
  reader->Read();
  events.Tick();
  EXPECT_GT(reader->waiting(), kHttpStreamBytesMax);
}

TEST(SlowReadersTest, AReaderIsToldNothingMoreOnceItsTokenHasEnded) {
  EventStreams events([] { return absl::UnavailableError("away"); }, Here);
  Bearer ended;
  ended.kind = Bearer::Kind::kReader;
  ended.ends = absl::UnixEpoch();
  const auto reader = std::make_shared<SlowReader>();
  events.Add(reader, "", ended);
  EXPECT_EQ(reader->waiting(), 0u);
  const auto other = std::make_shared<SlowReader>();
  events.Add(other, "", Bearer());
  EXPECT_GT(other->waiting(), 0u);
}

}  // namespace

}  // namespace cadre::web
