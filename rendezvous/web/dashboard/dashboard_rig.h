// A dashboard and its core, with nodes and an agent that the test simulates.
#ifndef CADRE_RENDEZVOUS_WEB_DASHBOARD_DASHBOARD_RIG_H_
#define CADRE_RENDEZVOUS_WEB_DASHBOARD_DASHBOARD_RIG_H_

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/bearer_token.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/host/fakes_for_test.h"
#include "rendezvous/host/messages_for_test.h"
#include "rendezvous/web/dashboard/dashboard.h"
#include "rendezvous/web/http/reader_for_test.h"
#include "rpc/versions.h"

namespace cadre::web {

inline constexpr char kToken[] = "0123456789abcdef";

// The agent of node "node", on which all workers have the same output.
class AgentForTest final : public host::NodeSink {
 public:
  explicit AgentForTest(host::CoreThread& core) : core_(core) {}

  // `self` must be this object.
  void Join(const std::shared_ptr<host::NodeSink>& self) {
    stream_ = core_.OpenStream(self);
    v1::NodeMessage message = FromAgent();
    v1::AgentJoined* joined = message.mutable_agent()->mutable_joined();
    joined->set_node("node");
    joined->set_cpus(2);
    *joined->mutable_version() = rpc::ThisVersion();
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
  // Reports that all of its part has ended.
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

// A node whose agent reports the same stack for both its workers.
class NodeForTest final : public host::NodeSink {
 public:
  explicit NodeForTest(host::CoreThread& core) : core_(core) {}
  // `self` must be this object.
  void Join(const std::shared_ptr<host::NodeSink>& self) {
    stream_ = core_.OpenStream(self);
    ASSERT_OK(core_.Post(stream_, host::JoinForTest("node", 1, 1)));
  }
  void Send(v1::ServerMessage message) override {
    if (!message.has_ask_stacks()) return;
    v1::NodeMessage answer = host::GenerationMessageForTest("node");
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

class DashboardRig : public ::testing::Test {
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
  // Adds job "job" of two nodes, of which one has joined.
  void AddJob() {
    stream_ = core_.OpenStream(std::make_shared<host::DiscardingSink>());
    ASSERT_OK(core_.Post(stream_, host::JoinForTest("node", 2, 2)));
    ASSERT_OK(core_.Status("job"));
  }
  // Submits the same job with one node to a cluster of one node, whose launcher joins.
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
    stream_ = core_.OpenStream(std::make_shared<host::DiscardingSink>());
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
  std::string GetAs(const std::string& token, const std::string& path) {
    return Get(path, absl::StrCat("Authorization: Bearer ", token, "\r\n"));
  }
  std::string Read(absl::Duration left = kTokenLifetime) const {
    return ReadToken(kToken, core_.server_id(), absl::Now() + left);
  }
  std::string User(const std::string& name) const {
    return UserToken(kToken, core_.server_id(), name, absl::Now() + kTokenLifetime);
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

}  // namespace cadre::web

#endif  // CADRE_RENDEZVOUS_WEB_DASHBOARD_DASHBOARD_RIG_H_
