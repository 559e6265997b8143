#include "rendezvous/service/node_stream.h"

#include <grpcpp/alarm.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "rendezvous/service/permissions.h"
#include "rpc/channels.h"
#include "rpc/message_limits.h"

namespace cadre::service {
namespace {

// Shared by all streams.
struct StreamService {
  v1::Rendezvous::AsyncService& service;
  CallThreads& threads;
  const Admission& admission;
  const char* greeting;
};

// At most one read and one write are in flight. Reactions run on the call threads and only decode,
// check and post; Send and Close are called by the thread that runs the core. Operations are
// started under mutex_, which ensures that Finish is the last; none of them calls a reaction
// directly.
class NodeStream final : public host::NodeSink, public std::enable_shared_from_this<NodeStream> {
 public:
  explicit NodeStream(const StreamService& door) : service_(door) {}

  // Waits for a node to open the stream.
  void Await() {
    self_ = shared_from_this();
    context_.AsyncNotifyWhenDone(&ended_);
    service_.service.RequestAttach(&context_, &stream_, service_.threads.queue(),
                                   service_.threads.queue(), &started_);
  }

  // --- NodeSink ---

  void Send(v1::ServerMessage message) override {
    {
      const absl::MutexLock lock(&mutex_);
      if (closing_.has_value()) return;
      const absl::Status queued = Queue(std::move(message));
      if (queued.ok()) return;
      EndNow(queued);
    }
    LeaveCore();
  }

  void Flush() override {
    const absl::MutexLock lock(&mutex_);
    WriteNext();
  }

  void Close(const absl::Status& status) override {
    const absl::MutexLock lock(&mutex_);
    if (closing_.has_value()) return;
    closing_ = status;
    LimitClosing();
    WriteNext();
    if (!writing_) FinishOnce();
  }

  // --- reactions ---

  void OnStarted(bool ok) {
    if (!ok) {
      // The server is shutting down. This must be the last line, as in Release.
      const std::shared_ptr<NodeStream> self = std::move(self_);
      return;
    }
    service_.threads.Enter();
    std::make_shared<NodeStream>(service_)->Await();
    absl::StatusOr<Admitted> admitted = service_.admission(context_);
    if (admitted.ok()) {
      core_ = std::move(admitted->core);
      bearer_ = std::move(admitted->bearer);
      loads_ = admitted->loads;
      token_ended_ = std::move(admitted->token_ended);
      Open();
    } else {
      const absl::MutexLock lock(&mutex_);
      EndNow(admitted.status());
    }
    Release();
  }

  void OnReadDone(bool ok) {
    absl::Status status;
    if (ok) status = Take();
    if (ok && status.ok()) {
      const absl::MutexLock lock(&mutex_);
      if (!finished_) StartRead();
      return;
    }
    LeaveCore();
    if (ok) {
      const absl::MutexLock lock(&mutex_);
      EndNow(status);
    } else {
      // The node has finished sending; messages that were queued for it are still sent.
      Close(absl::OkStatus());
    }
  }

  void OnWriteDone(bool ok) {
    {
      const absl::MutexLock lock(&mutex_);
      writing_ = false;
      waiting_bytes_ -= outgoing_bytes_;
      loads_->RemoveStreamed(bearer_, outgoing_bytes_);
      if (ok) {
        WriteNext();
        if (!writing_ && closing_.has_value()) FinishOnce();
        return;
      }
      EndNow(absl::UnavailableError("the stream is broken"));
    }
    LeaveCore();
  }

  // gRPC has ended the call, perhaps before this side has.
  void OnEnd(bool) {
    if (!context_.IsCancelled()) return;
    LeaveCore();
    const absl::MutexLock lock(&mutex_);
    EndNow(absl::CancelledError("the stream was cancelled"));
  }

 private:
  template <void (NodeStream::*kReaction)(bool)>
  void AndRelease(bool ok) {
    (this->*kReaction)(ok);
    Release();
  }
  void OnSent(bool) {}
  void OnFinished(bool) {
    const absl::MutexLock lock(&mutex_);
    close_limit_.Cancel();
  }
  void OnCloseLimit(bool expired) {
    if (expired) context_.TryCancel();
  }

  void Open() {
    id_ = core_->OpenStream(shared_from_this());
    left_ = false;
    {
      const absl::MutexLock lock(&mutex_);
      if (!finished_) {
        // Tells the node that it has reached a Cadre server, before any message.
        context_.AddInitialMetadata(rpc::kServerMetadata, service_.greeting);
        stream_.SendInitialMetadata(Begin(&opened_));
        return StartRead();
      }
    }
    // The core, or the call, has ended since the core was found.
    LeaveCore();
  }

  void StartRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    stream_.Read(&incoming_, Begin(&read_));
  }

  // Counts an operation that is being started.
  Operation* Begin(Operation* operation) {
    ++under_way_;
    return operation;
  }
  // Called when an operation and its reaction have ended. After the last one gRPC does not use this
  // object any more.
  void Release() {
    if (--under_way_ > 0) return;
    LeaveCore();
    service_.threads.Leave();
    // This must be the last line: it may destroy this object.
    const std::shared_ptr<NodeStream> self = std::move(self_);
  }

  // Passes the message that was read to the core.
  absl::Status Take() {
    if (!joined_ && !incoming_.has_join() && !incoming_.agent().has_joined()) {
      return absl::InvalidArgumentError("the first message of a stream must be a Join");
    }
    // All later messages belong to the job or cluster that this one joins.
    if (!joined_) {
      RETURN_IF_ERROR(MayOpenStream(bearer_, incoming_));
      joined_ = true;
      SetCaller();
      const absl::MutexLock lock(&mutex_);
      purpose_ = {incoming_.has_agent(), incoming_.has_agent() ? "" : incoming_.job()};
    }
    return core_->Post(id_, std::move(incoming_));
  }

  // Replaces the caller in the Join, because the node's own claim is not trusted.
  void SetCaller() {
    if (!incoming_.has_join()) return;
    v1::Join& join = *incoming_.mutable_join();
    join.clear_caller();
    if (bearer_.kind != Bearer::Kind::kUser) return;
    join.mutable_caller()->set_user(bearer_.user);
    join.mutable_caller()->set_token_ended(std::string(token_ended_.message()));
  }

  // The core forgets the stream as soon as the node is gone, which gRPC may notice later.
  void LeaveCore() {
    if (!left_.exchange(true)) core_->CloseStream(id_);
  }

  absl::Status Queue(v1::ServerMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // The core never sends such a message; if it did, this node must not read it.
    if (!MayReceive(bearer_, purpose_, message)) {
      return absl::InternalError("the server had a message for another stream; connect again");
    }
    const size_t size = message.ByteSizeLong();
    const bool fits = waiting_.size() < kWaitingMessagesMax &&
                      (waiting_.empty() || waiting_bytes_ + size <= kWaitingBytesMax);
    if (!fits) {
      loads_->LogClosed(bearer_, "a node's stream");
      return absl::ResourceExhaustedError("this node does not read its stream; connect again");
    }
    const absl::Status room = loads_->AddStreamed(bearer_, size);
    if (!room.ok()) {
      loads_->LogClosed(bearer_, "a node's stream");
      return room;
    }
    waiting_.push_back({std::move(message), size});
    waiting_bytes_ += size;
    return absl::OkStatus();
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_ || waiting_.empty()) return;
    writing_ = true;
    outgoing_ = std::move(waiting_.front().message);
    outgoing_bytes_ = waiting_.front().bytes;
    waiting_.pop_front();
    // Several messages in one write, because a write costs more than a message.
    while (!waiting_.empty() && outgoing_bytes_ + waiting_.front().bytes <= rpc::kBundleBytesMax) {
      *outgoing_.add_more() = std::move(waiting_.front().message);
      outgoing_bytes_ += waiting_.front().bytes;
      waiting_.pop_front();
    }
    stream_.Write(outgoing_, Begin(&written_));
  }

  // Ends the stream without writing the messages that wait.
  void EndNow(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    closing_ = status;
    waiting_.clear();
    const size_t left = writing_ ? outgoing_bytes_ : 0;
    if (loads_ != nullptr) loads_->RemoveStreamed(bearer_, waiting_bytes_ - left);
    waiting_bytes_ = left;
    LimitClosing();
    FinishOnce();
  }

  void FinishOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    finished_ = true;
    stream_.Finish(rpc::ToGrpcStatus(*closing_), Begin(&finish_));
  }

  // The status is sent after everything written before it, so a node that never reads would keep
  // the stream open for ever. Finish cancels this timer.
  void LimitClosing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (limited_) return;
    limited_ = true;
    const auto deadline =
        std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kCloseTimeout);
    close_limit_.Set(service_.threads.queue(), deadline, Begin(&expired_));
  }

  const StreamService service_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<v1::ServerMessage, v1::NodeMessage> stream_{&context_};
  OperationOf<NodeStream, &NodeStream::OnStarted> started_{this};
  OperationOf<NodeStream, &NodeStream::AndRelease<&NodeStream::OnEnd>> ended_{this};
  OperationOf<NodeStream, &NodeStream::AndRelease<&NodeStream::OnSent>> opened_{this};
  OperationOf<NodeStream, &NodeStream::AndRelease<&NodeStream::OnReadDone>> read_{this};
  OperationOf<NodeStream, &NodeStream::AndRelease<&NodeStream::OnWriteDone>> written_{this};
  OperationOf<NodeStream, &NodeStream::AndRelease<&NodeStream::OnFinished>> finish_{this};
  OperationOf<NodeStream, &NodeStream::AndRelease<&NodeStream::OnCloseLimit>> expired_{this};
  // From the start two are under way: `started_` and `ended_`.
  std::atomic<int> under_way_{2};
  // Set once, before anything is read.
  std::shared_ptr<host::CoreThread> core_;
  Bearer bearer_;
  CallerLoads* loads_ = nullptr;
  absl::Status token_ended_;
  StreamId id_;
  std::shared_ptr<NodeStream> self_;
  // Whether the core does not know the stream: not yet, or no longer.
  std::atomic<bool> left_{true};
  grpc::Alarm close_limit_;
  // Used by OnReadDone alone, which never runs twice at once.
  v1::NodeMessage incoming_;
  bool joined_ = false;

  absl::Mutex mutex_;
  struct Waiting {
    v1::ServerMessage message;
    size_t bytes;
  };
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  // Nothing is sent before the first message has set it.
  StreamPurpose purpose_ ABSL_GUARDED_BY(mutex_);
  // Of the waiting messages and the one being written.
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // gRPC uses it while writing_ is set.
  v1::ServerMessage outgoing_ ABSL_GUARDED_BY(mutex_);
  size_t outgoing_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // If set, nothing more is accepted, and the stream ends with this status.
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool limited_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

void ServeNodeStreams(v1::Rendezvous::AsyncService& service, CallThreads& threads,
                      const Admission& admission, const char* greeting) {
  std::make_shared<NodeStream>(StreamService{service, threads, admission, greeting})->Await();
}

}  // namespace cadre::service
