// Test fixtures for both ends of a link in one process: a peer that records its link's callbacks, a
// server with its core, and misbehaving sockets.
#ifndef CADRE_AGENT_LINK_GRPC_LINK_RIG_H_
#define CADRE_AGENT_LINK_GRPC_LINK_RIG_H_

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "agent/link/grpc_link.h"
#include "base/status_matchers.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/log/record_log.h"
#include "rendezvous/service/server.h"
#include "rpc/status_details.h"
#include "tests/testing/loopback_socket.h"

namespace cadre::agent {

inline constexpr char kToken[] = "0123456789abcdef0123456789abcdef";
inline constexpr absl::Duration kTestTimeout = absl::Seconds(20);

// A link and everything it has reported.
class Peer {
 public:
  explicit Peer(const std::string& endpoint, const std::string& token = kToken,
                bool returns_after_refusal = false)
      : Peer(GrpcLinkOptions{absl::StrSplit(endpoint, ','), token, {}, returns_after_refusal}) {}
  explicit Peer(GrpcLinkOptions options) : link_(MakeGrpcLink(std::move(options))) {}

  // Sends `hello` whenever the link comes up.
  void Start(std::vector<v1::NodeMessage> hello = {}) {
    LinkCallbacks callbacks;
    callbacks.on_up = [this, hello = std::move(hello)](uint64_t stream) {
      // As if the message had been queued since the stream before.
      if (late_.has_value()) link_->Send(stream_, *late_);
      stream_ = stream;
      for (const v1::NodeMessage& message : hello) link_->Send(stream, message);
      const absl::MutexLock lock(&mutex_);
      ++ups_;
    };
    callbacks.on_message = [this](v1::ServerMessage message) {
      const absl::MutexLock lock(&mutex_);
      messages_.push_back(std::move(message));
    };
    callbacks.on_down = [this](absl::Status status) {
      const absl::MutexLock lock(&mutex_);
      downs_.push_back(std::move(status));
    };
    link_->Start(std::move(callbacks));
  }

  ServerLink& link() { return *link_; }
  // Sends on the newest stream.
  void Send(const v1::NodeMessage& message) { link_->Send(stream_, message); }
  // When a stream comes up, sends this message for the stream before it. Call before Start.
  void SendLate(const v1::NodeMessage& message) { late_ = message; }

  bool AwaitUps(int count) {
    return Await([this, count] { return ups_ >= count; });
  }
  // The first message with this body, or an empty one.
  v1::ServerMessage AwaitMessage(v1::ServerMessage::BodyCase body) {
    v1::ServerMessage found;
    Await([&] {
      for (const v1::ServerMessage& message : messages_) {
        if (message.body_case() == body) found = message;
      }
      return found.body_case() == body;
    });
    return found;
  }
  // The client's request ids in the order in which they were answered, once there are `count`.
  std::vector<uint64_t> AwaitAnswers(size_t count) {
    std::vector<uint64_t> requests;
    Await([&] {
      requests.clear();
      for (const v1::ServerMessage& message : messages_) {
        if (message.has_store()) requests.push_back(message.store().request_id());
      }
      return requests.size() >= count;
    });
    return requests;
  }
  // The status with which the link went down for the count-th time.
  absl::Status AwaitDown(size_t count = 1) {
    if (!Await([this, count] { return downs_.size() >= count; })) return absl::OkStatus();
    const absl::MutexLock lock(&mutex_);
    return downs_[count - 1];
  }
  bool AwaitRefusals(int count) {
    return Await([this, count] {
      return std::count_if(downs_.begin(), downs_.end(), absl::IsUnauthenticated) >= count;
    });
  }
  size_t downs() {
    const absl::MutexLock lock(&mutex_);
    return downs_.size();
  }

 private:
  template <typename Predicate>
  bool Await(const Predicate& predicate) {
    const absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&predicate), kTestTimeout);
  }

  std::atomic<uint64_t> stream_{0};
  std::optional<v1::NodeMessage> late_;
  absl::Mutex mutex_;
  int ups_ = 0;
  std::vector<v1::ServerMessage> messages_;
  std::vector<absl::Status> downs_;
  // Last, so that it is stopped before the other members are destroyed.
  std::unique_ptr<ServerLink> link_;
};

// A disk that stays full.
class FullDiskLog final : public log::RecordLog {
 public:
  uint64_t server_id() const override { return 1; }
  absl::Status Append(const log::RecordRows&) override {
    return absl::ResourceExhaustedError("no room");
  }
};

// A server and its core in one process.
class Host {
 public:
  explicit Host(int port = 0, log::OpenedLog durable = {}, const std::string& token = kToken,
                const rpc::TransportSecurity& security = {}, bool keeps_nothing = false)
      : core(host::NewCoreConfig(), nullptr, std::move(durable)) {
    service::ServerOptions options;
    options.token = token;
    options.port = port;
    options.security = security;
    options.keeps_nothing = keeps_nothing;
    absl::StatusOr<std::unique_ptr<service::Server>> server = service::Server::Start(options, core);
    EXPECT_OK(server);
    if (server.ok()) server_ = *std::move(server);
  }
  int port() const { return server_ == nullptr ? 0 : server_->port(); }
  std::string endpoint() const { return absl::StrCat("127.0.0.1:", port()); }

  void Refuse(const std::string& why) { server_->Refuse(rpc::NotLeading(why)); }
  void Serve() {
    server_->Serve(std::shared_ptr<host::CoreThread>(std::shared_ptr<void>(), &core));
  }

  host::CoreThread core;

 private:
  std::unique_ptr<service::Server> server_;
};

// A port at which no process listens unless Listen() is called.
class PlainSocket {
 public:
  std::string endpoint() const { return absl::StrCat("127.0.0.1:", socket_.port()); }
  // From now on the kernel accepts connections, but they are never read.
  void Listen() { socket_.Listen(); }
  // Answers one connection and closes it.
  void AnswerOnce(const std::string& text) {
    const int connection = accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return;
    char request[4096];
    if (read(connection, request, sizeof(request)) > 0) {
      EXPECT_EQ(write(connection, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    }
    close(connection);
  }

 private:
  const LoopbackSocket socket_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LINK_GRPC_LINK_RIG_H_
