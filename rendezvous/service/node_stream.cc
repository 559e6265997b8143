#include "rendezvous/service/node_stream.h"

#include <grpcpp/alarm.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/channel_arguments.h"

namespace cadre {
namespace {

// At most one read and one write are in flight. Reactions run on gRPC's threads and only decode,
// check and post; Send and Close come from the core thread. Starting an operation under mutex_ is
// safe, since gRPC runs no reaction inside Start* or Finish; it keeps Finish the last of them.
class NodeStream final : public NodeReactor,
                         public Outbox,
                         public std::enable_shared_from_this<NodeStream> {
 public:
  NodeStream(std::shared_ptr<CoreThread> core, grpc::CallbackServerContext* context)
      : core_(std::move(core)), context_(context) {}

  void Open() {
    self_ = shared_from_this();
    id_ = core_->OpenStream(self_);
    const absl::MutexLock lock(&mutex_);
    // The core has ended between finding it and coming here.
    if (finished_) return;
    // Tells the node that it has reached a server of ours, before anything is said.
    context_->AddInitialMetadata(kServerMetadata, "1");
    StartSendInitialMetadata();
    StartRead(&incoming_);
  }

  // --- Outbox ---

  void Send(v1::ServerMessage message) override {
    {
      const absl::MutexLock lock(&mutex_);
      if (closing_.has_value()) return;
      const size_t size = message.ByteSizeLong();
      const bool fits = outbox_.size() < kOutboxMessagesMax &&
                        (outbox_.empty() || outbox_bytes_ + size <= kOutboxBytesMax);
      if (fits) {
        outbox_.push_back({std::move(message), size});
        outbox_bytes_ += size;
        return;
      }
      EndNow(absl::ResourceExhaustedError("this node does not read its stream; connect again"));
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

  void OnReadDone(bool ok) override {
    absl::Status status;
    if (ok) status = Take();
    if (ok && status.ok()) {
      const absl::MutexLock lock(&mutex_);
      if (!finished_) StartRead(&incoming_);
      return;
    }
    LeaveCore();
    if (ok) {
      const absl::MutexLock lock(&mutex_);
      EndNow(status);
    } else {
      // The node says no more; what was sent to it before still goes out.
      Close(absl::OkStatus());
    }
  }

  void OnWriteDone(bool ok) override {
    {
      const absl::MutexLock lock(&mutex_);
      writing_ = false;
      outbox_bytes_ -= outgoing_bytes_;
      if (ok) {
        WriteNext();
        if (!writing_ && closing_.has_value()) FinishOnce();
        return;
      }
      EndNow(absl::UnavailableError("the stream is broken"));
    }
    LeaveCore();
  }

  void OnCancel() override {
    LeaveCore();
    const absl::MutexLock lock(&mutex_);
    EndNow(absl::CancelledError("the stream was cancelled"));
  }

  void OnDone() override {
    LeaveCore();
    {
      const absl::MutexLock lock(&mutex_);
      context_ = nullptr;
    }
    close_limit_.Cancel();
    // The last line: nothing of this object may be used after it.
    const std::shared_ptr<NodeStream> self = std::move(self_);
  }

 private:
  // Hands what was read to the core.
  absl::Status Take() {
    if (!joined_ && !incoming_.has_join() && !incoming_.agent().has_joined()) {
      return absl::InvalidArgumentError("the first message of a stream must be a Join");
    }
    joined_ = true;
    return core_->Post(id_, std::move(incoming_));
  }

  // The core forgets this stream as soon as the node is gone, which is before OnDone.
  void LeaveCore() {
    if (!left_.exchange(true)) core_->CloseStream(id_);
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_ || outbox_.empty()) return;
    writing_ = true;
    outgoing_ = std::move(outbox_.front().message);
    outgoing_bytes_ = outbox_.front().bytes;
    outbox_.pop_front();
    // A write costs more than a message.
    while (!outbox_.empty() && outgoing_bytes_ + outbox_.front().bytes <= kBundleBytesMax) {
      *outgoing_.add_more() = std::move(outbox_.front().message);
      outgoing_bytes_ += outbox_.front().bytes;
      outbox_.pop_front();
    }
    StartWrite(&outgoing_);
  }

  // Ends the stream without writing what waits.
  void EndNow(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    closing_ = status;
    outbox_.clear();
    outbox_bytes_ = writing_ ? outgoing_bytes_ : 0;
    LimitClosing();
    FinishOnce();
  }

  void FinishOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    finished_ = true;
    Finish(ToGrpcStatus(*closing_));
  }

  // A status travels behind what was written before it, so a node that never reads would keep the
  // stream for good.
  void LimitClosing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (limited_) return;
    limited_ = true;
    const auto deadline =
        std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kCloseTimeout);
    close_limit_.Set(deadline, [weak = weak_from_this()](bool expired) {
      const std::shared_ptr<NodeStream> self = weak.lock();
      if (self == nullptr || !expired) return;
      const absl::MutexLock lock(&self->mutex_);
      if (self->context_ != nullptr) self->context_->TryCancel();
    });
  }

  const std::shared_ptr<CoreThread> core_;
  StreamId id_;
  std::shared_ptr<NodeStream> self_;
  std::atomic<bool> left_{false};
  grpc::Alarm close_limit_;
  // Used by OnReadDone alone, which never runs twice at once.
  v1::NodeMessage incoming_;
  bool joined_ = false;

  absl::Mutex mutex_;
  grpc::CallbackServerContext* context_ ABSL_GUARDED_BY(mutex_);
  struct Waiting {
    v1::ServerMessage message;
    size_t bytes;
  };
  std::deque<Waiting> outbox_ ABSL_GUARDED_BY(mutex_);
  // Of these and of what is being written.
  size_t outbox_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // gRPC's while writing_ holds.
  v1::ServerMessage outgoing_ ABSL_GUARDED_BY(mutex_);
  size_t outgoing_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // Set: nothing more is accepted, and the stream ends with this.
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool limited_ ABSL_GUARDED_BY(mutex_) = false;
};

class RefusedStream final : public NodeReactor {
 public:
  explicit RefusedStream(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

NodeReactor* ServeNodeStream(std::shared_ptr<CoreThread> core,
                             grpc::CallbackServerContext* context) {
  const auto stream = std::make_shared<NodeStream>(std::move(core), context);
  stream->Open();
  return stream.get();
}

NodeReactor* RefuseNodeStream(const absl::Status& status) { return new RefusedStream(status); }

}  // namespace cadre
