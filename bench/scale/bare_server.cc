// The bound: the same streams, messages, threads and gRPC settings as the server's, and nothing
// behind them.
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
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/service/calls.h"
#include "rpc/channels.h"

namespace cadre {
namespace {

// The value that it has under every key.
constexpr size_t kValueBytes = 16;

class BareStream;

struct BareService {
  v1::Rendezvous::AsyncService calls;
  service::CallThreads* threads;
  absl::Mutex mutex;
  std::set<BareStream*> streams ABSL_GUARDED_BY(mutex);
};

class BareStream {
 public:
  // Waits for a node.
  explicit BareStream(BareService& service) : service_(service) {
    service_.calls.RequestAttach(&context_, &stream_, service_.threads->queue(),
                                 service_.threads->queue(), &started_);
  }

  void Send(v1::ServerMessage message) {
    const absl::MutexLock lock(&mutex_);
    if (over_) return;
    outbox_.push_back(std::move(message));
    WriteNext();
  }

 private:
  void OnStarted(bool) {
    new BareStream(service_);
    const absl::MutexLock lock(&service_.mutex);
    service_.streams.insert(this);
    stream_.Read(&incoming_, &read_);
  }
  void OnRead(bool ok);
  void OnWritten(bool) {
    const absl::MutexLock lock(&mutex_);
    writing_ = false;
    outbox_.pop_front();
    WriteNext();
  }
  v1::ServerMessage AnswerAll() const;
  void SendToAll(const v1::ServerMessage& message) {
    const absl::MutexLock lock(&service_.mutex);
    for (BareStream* stream : service_.streams) stream->Send(message);
  }
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || over_ || outbox_.empty()) return;
    writing_ = true;
    stream_.Write(outbox_.front(), &written_);
  }

  BareService& service_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<v1::ServerMessage, v1::NodeMessage> stream_{&context_};
  service::OperationOf<BareStream, &BareStream::OnStarted> started_{this};
  service::OperationOf<BareStream, &BareStream::OnRead> read_{this};
  service::OperationOf<BareStream, &BareStream::OnWritten> written_{this};
  v1::NodeMessage incoming_;
  absl::Mutex mutex_;
  std::deque<v1::ServerMessage> outbox_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

void BareStream::OnRead(bool ok) {
  if (!ok) {
    // The node is gone, and soon this program; what may be under way still uses the stream.
    {
      const absl::MutexLock lock(&service_.mutex);
      service_.streams.erase(this);
    }
    const absl::MutexLock lock(&mutex_);
    over_ = true;
    return context_.TryCancel();
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
    SendToAll(answer);
  }
  stream_.Read(&incoming_, &read_);
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

int Serve() {
  rpc::QuietGrpcLog();
  BareService service;
  grpc::ServerBuilder builder;
  rpc::SetServerArguments(builder);
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service.calls);
  service::CallThreads threads(builder.AddCompletionQueue());
  service.threads = &threads;
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    std::fprintf(stderr, "bare_server: cannot listen on 127.0.0.1\n");
    return 1;
  }
  new BareStream(service);
  threads.Start();
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
