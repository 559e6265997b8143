// The bound: the same streams, messages and gRPC settings as the server's, and nothing behind them.
//
//   bare_server
//
// Prints "serving at PORT" and serves until it is killed. A Join is answered at once, with a
// Welcome, and a store request; a Cancel on one stream sends a Stop to all.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <cstdio>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/channel_arguments.h"
#include "proto/rendezvous.grpc.pb.h"

namespace cadre {
namespace {

// What it says is under every key.
constexpr size_t kValueBytes = 16;

class BareService;

class BareStream final : public grpc::ServerBidiReactor<v1::NodeMessage, v1::ServerMessage> {
 public:
  explicit BareStream(BareService& service) : service_(service) { StartRead(&incoming_); }

  void Send(v1::ServerMessage message) {
    const absl::MutexLock lock(&mutex_);
    if (over_) return;
    outbox_.push_back(std::move(message));
    WriteNext();
  }
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool) override {
    const absl::MutexLock lock(&mutex_);
    writing_ = false;
    outbox_.pop_front();
    WriteNext();
  }
  void OnDone() override;

 private:
  v1::ServerMessage AnswerAll() const;
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || over_ || outbox_.empty()) return;
    writing_ = true;
    StartWrite(&outbox_.front());
  }

  BareService& service_;
  v1::NodeMessage incoming_;
  absl::Mutex mutex_;
  std::deque<v1::ServerMessage> outbox_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

class BareService final : public v1::Rendezvous::CallbackService {
 public:
  grpc::ServerBidiReactor<v1::NodeMessage, v1::ServerMessage>* Attach(
      grpc::CallbackServerContext*) override {
    auto* stream = new BareStream(*this);
    const absl::MutexLock lock(&mutex_);
    streams_.insert(stream);
    return stream;
  }
  void SendToAll(const v1::ServerMessage& message) {
    const absl::MutexLock lock(&mutex_);
    for (BareStream* stream : streams_) stream->Send(message);
  }
  void Forget(BareStream* stream) {
    const absl::MutexLock lock(&mutex_);
    streams_.erase(stream);
  }

 private:
  absl::Mutex mutex_;
  std::set<BareStream*> streams_ ABSL_GUARDED_BY(mutex_);
};

void BareStream::OnReadDone(bool ok) {
  if (!ok) {
    const absl::MutexLock lock(&mutex_);
    over_ = true;
    return Finish(grpc::Status::OK);
  }
  v1::ServerMessage answers = AnswerAll();
  if (answers.has_store()) Send(std::move(answers));
  if (incoming_.has_join()) {
    v1::ServerMessage answer;
    answer.set_job(incoming_.job());
    *answer.mutable_welcome()->mutable_spec() = incoming_.join().spec();
    Send(std::move(answer));
  } else if (incoming_.has_cancel()) {
    v1::ServerMessage answer;
    answer.set_job(incoming_.job());
    answer.mutable_stop()->set_reason(incoming_.cancel().reason());
    service_.SendToAll(answer);
  }
  StartRead(&incoming_);
}

// To all store requests that came as one, as one.
v1::ServerMessage BareStream::AnswerAll() const {
  v1::ServerMessage answers;
  const auto answer = [&](const v1::NodeMessage& said) {
    if (!said.has_store()) return;
    v1::StoreReply* reply = (answers.has_store() ? answers.add_more() : &answers)->mutable_store();
    reply->set_client(said.store().client());
    reply->set_request_id(said.store().request_id());
    if (said.store().has_get()) reply->set_value(std::string(kValueBytes, 'v'));
  };
  answer(incoming_);
  for (const v1::NodeMessage& next : incoming_.more()) answer(next);
  return answers;
}

void BareStream::OnDone() {
  service_.Forget(this);
  delete this;
}

int Serve() {
  QuietGrpcLog();
  BareService service;
  grpc::ServerBuilder builder;
  SetServerArguments(builder);
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    std::fprintf(stderr, "bare_server: cannot listen on 127.0.0.1\n");
    return 1;
  }
  std::printf("serving at %d\n", port);
  std::fflush(stdout);
  for (;;) pause();
}

}  // namespace
}  // namespace cadre

int main() {
  // As `cadre` does.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return cadre::Serve();
}
