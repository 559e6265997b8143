#include "rendezvous/web/dashboard/dashboard.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"
#include "nlohmann/json.hpp"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/host/join_for_test.h"
#include "rendezvous/web/dashboard/log_tails.h"
#include "rendezvous/web/http/reader_for_test.h"

namespace cadre::web {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kToken[] = "0123456789abcdef";

class NoSink final : public host::NodeSink {
 public:
  void Send(v1::ServerMessage) override {}
  void Close(const absl::Status&) override {}
};

// The agent of node "node", on which every worker wrote the same.
class AgentForTest final : public host::NodeSink {
 public:
  explicit AgentForTest(host::CoreThread& core) : core_(core) {}

  // `self` is this.
  void Join(const std::shared_ptr<host::NodeSink>& self) {
    stream_ = core_.OpenStream(self);
    v1::NodeMessage message = FromAgent();
    v1::AgentJoined* joined = message.mutable_agent()->mutable_joined();
    joined->set_node("node");
    joined->set_cpus(2);
    (*joined->mutable_labels())["switch"] = "s1";
    ASSERT_OK(core_.Post(stream_, message));
  }
  void Append(const std::string& text) {
    const absl::MutexLock lock(&mutex_);
    text_ += text;
  }
  void Refuse(const std::string& why) {
    const absl::MutexLock lock(&mutex_);
    refusal_ = why;
  }
  // Nothing is left of its part.
  void EndPart() {
    v1::NodeMessage message = FromAgent();
    message.mutable_agent()->mutable_ended()->set_id(1);
    EXPECT_OK(core_.Post(stream_, message));
  }
  void Send(v1::ServerMessage message) override {
    if (!message.agent().has_read_log()) return;
    const v1::ReadLog& read = message.agent().read_log();
    v1::NodeMessage answer = FromAgent();
    v1::LogChunk* chunk = answer.mutable_agent()->mutable_log();
    chunk->set_call(read.call());
    {
      const absl::MutexLock lock(&mutex_);
      const uint64_t size = text_.size();
      const uint64_t from = read.tail() > 0 ? size - std::min(size, read.tail()) : read.offset();
      chunk->set_offset(from);
      chunk->set_bytes(text_.substr(from, read.limit()));
      if (!refusal_.empty()) {
        chunk->set_code(static_cast<int>(absl::StatusCode::kPermissionDenied));
        chunk->set_message(refusal_);
      }
    }
    EXPECT_OK(core_.Post(stream_, answer));
  }
  void Close(const absl::Status&) override {}

 private:
  static v1::NodeMessage FromAgent() {
    v1::NodeMessage message;
    message.set_incarnation(1);
    return message;
  }

  host::CoreThread& core_;
  StreamId stream_;
  absl::Mutex mutex_;
  std::string text_;
  std::string refusal_;
};

// A node whose agent says of both its workers that they are in the same place.
class NodeForTest final : public host::NodeSink {
 public:
  explicit NodeForTest(host::CoreThread& core) : core_(core) {}
  // `self` is this.
  void Join(const std::shared_ptr<host::NodeSink>& self) {
    stream_ = core_.OpenStream(self);
    ASSERT_OK(core_.Post(stream_, host::JoinForTest("node", 1, 1)));
  }
  void Send(v1::ServerMessage message) override {
    if (!message.has_ask_stacks()) return;
    v1::NodeMessage answer = host::OfGenerationForTest("node");
    v1::NodeStacks* stacks = answer.mutable_stacks();
    stacks->set_call(message.ask_stacks().call());
    const v1::StackQuestion& question = message.ask_stacks().question();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      if (question.one_rank() && question.rank() != rank) continue;
      v1::RankStack* stack = stacks->add_ranks();
      stack->mutable_evidence()->set_local_rank(static_cast<int32_t>(rank));
      stack->add_frames()->set_function("all_reduce");
    }
    EXPECT_OK(core_.Post(stream_, answer));
  }
  void Close(const absl::Status&) override {}

 private:
  host::CoreThread& core_;
  StreamId stream_;
};

class DashboardTest : public ::testing::Test {
 protected:
  void Start(DashboardOptions options = {}) {
    auto dashboard =
        Dashboard::Start(options, [this]() -> absl::StatusOr<std::shared_ptr<host::CoreThread>> {
          if (in_reserve_) return absl::UnavailableError("in reserve");
          return std::shared_ptr<host::CoreThread>(std::shared_ptr<void>(), &core_);
        });
    ASSERT_OK(dashboard);
    dashboard_ = *std::move(dashboard);
  }
  // Job "job" of two nodes, of which one has come.
  void AddJob() {
    stream_ = core_.OpenStream(std::make_shared<NoSink>());
    ASSERT_OK(core_.Post(stream_, host::JoinForTest("node", 2, 2)));
    ASSERT_OK(core_.Status("job"));
  }
  // The same of one node, submitted to a cluster of one node, and its launcher.
  void AddSubmittedJob() {
    agent_->Join(agent_);
    const v1::NodeMessage join = host::JoinForTest("node", 1, 1);
    absl::Notification submitted;
    v1::SubmitJobRequest request;
    *request.mutable_spec() = join.join().spec();
    request.set_user("ann");
    core_.AskSubmit(request, [&](absl::StatusOr<v1::JobStatus> status) {
      EXPECT_OK(status);
      submitted.Notify();
    });
    submitted.WaitForNotification();
    v1::NodeMessage launcher = join;
    launcher.mutable_join()->set_part(1);
    launcher.mutable_join()->clear_spec();
    stream_ = core_.OpenStream(std::make_shared<NoSink>());
    ASSERT_OK(core_.Post(stream_, launcher));
    const auto status = core_.Status("job");
    ASSERT_OK(status);
    ASSERT_EQ(status->world_size(), 2u) << status->DebugString();
  }
  std::string Get(const std::string& path, const std::string& headers = "Host: localhost\r\n") {
    ReaderForTest reader(dashboard_->port());
    reader.Send(absl::StrCat("GET ", path, " HTTP/1.1\r\n", headers, "\r\n"));
    return reader.All();
  }
  static nlohmann::json Body(const std::string& reply) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(reply, absl::MaxSplits("\r\n\r\n", 1));
    return nlohmann::json::parse(parts.second, nullptr, false);
  }

  std::atomic<bool> in_reserve_{false};
  host::CoreThread core_{host::NewCoreConfig()};
  const std::shared_ptr<AgentForTest> agent_ = std::make_shared<AgentForTest>(core_);
  StreamId stream_;
  std::unique_ptr<Dashboard> dashboard_;
};

TEST_F(DashboardTest, ThePageAndWhatItNames) {
  Start();
  const std::string page = Get("/");
  EXPECT_THAT(page, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("text/html"),
                          HasSubstr("<title>Cadre</title>")));
  for (const char* file : {"/style.css", "/icon.svg", "/main.js", "/dom.js", "/events.js",
                           "/job.js", "/pictures.js", "/logs.js", "/cluster.js", "/stacks.js"}) {
    EXPECT_THAT(Get(file), StartsWith("HTTP/1.1 200 ")) << file;
  }
  EXPECT_THAT(Get("/nothing"), StartsWith("HTTP/1.1 404 "));
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
        "/api/jobs/job/log", "/api/jobs/job/stacks", "/api/nodes"}) {
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
  // A file is all that is read.
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
  // The end alone of what is there.
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
  // The verdict is there; the last of the output comes after it.
  agent_->Append("last words\n");
  EXPECT_TRUE(reader.Await("last words\n"));
  core_.CloseStream(stream_);
  agent_->EndPart();
  // It comes to its end without anybody leaving.
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

}  // namespace
}  // namespace cadre::web
