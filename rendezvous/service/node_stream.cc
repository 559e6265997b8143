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
#include "rendezvous/service/disclosure.h"
#include "rendezvous/service/permission.h"
#include "rpc/channels.h"
#include "rpc/limits.h"
#include "rpc/status.h"

namespace cadre::service {
namespace {

// Things that all streams share.
struct Door {
  v1::Rendezvous::AsyncService& service;
  CallThreads& threads;
  const Admission& admission;
  const char* greeting;
};

// At most one read and one write are in flight. Reactions run on the call threads and only decode,
// check and post; Send and Close come from who has the core. Operations are started under mutex_,
// which keeps Finish the last of them; none of them calls a reaction.
class NodeStream final : public host::NodeSink, public std::enable_shared_from_this<NodeStream> {
 public:
  explicit NodeStream(const Door& door) : door_(door) {}

  // Waits for a node.
  void Await() {
    self_ = shared_from_this();
    context_.AsyncNotifyWhenDone(&ended_);
    door_.service.RequestAttach(&context_, &stream_, door_.threads.queue(), door_.threads.queue(),
                                &came_);
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

  void OnCome(bool ok) {
    if (!ok) {
      // The server is being shut down. The last line, as below.
      const std::shared_ptr<NodeStream> self = std::move(self_);
      return;
    }
    door_.threads.Enter();
    std::make_shared<NodeStream>(door_)->Await();
    absl::StatusOr<Admitted> admitted = door_.admission(context_);
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
      // The node says no more; what was sent to it before still goes out.
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

  // gRPC is done with the call, which this side may not be.
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
        // Tells the node that it has reached a server of ours, before anything is said.
        context_.AddInitialMetadata(rpc::kServerMetadata, door_.greeting);
        stream_.SendInitialMetadata(Begin(&opened_));
        return StartRead();
      }
    }
    // The core, or the call, has ended between finding the one and coming here.
    LeaveCore();
  }

  void StartRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    stream_.Read(&incoming_, Begin(&read_));
  }

  // An operation is under way.
  Operation* Begin(Operation* operation) {
    ++under_way_;
    return operation;
  }
  // It has ended, and its reaction too. After the last of them gRPC knows this object no more.
  void Release() {
    if (--under_way_ > 0) return;
    LeaveCore();
    door_.threads.Leave();
    // The last line: nothing of this object may be used after it.
    const std::shared_ptr<NodeStream> self = std::move(self_);
  }

  // Hands what was read to the core.
  absl::Status Take() {
    if (!joined_ && !incoming_.has_join() && !incoming_.agent().has_joined()) {
      return absl::InvalidArgumentError("the first message of a stream must be a Join");
    }
    // All that follows belongs to the job or cluster that it joins.
    if (!joined_) {
      RETURN_IF_ERROR(MayOpenStream(bearer_, incoming_));
      joined_ = true;
      SayWhoCalls();
      const absl::MutexLock lock(&mutex_);
      purpose_ = {incoming_.has_agent(), incoming_.has_agent() ? "" : incoming_.job()};
    }
    return core_->Post(id_, std::move(incoming_));
  }

  // What the node says of that itself counts for nothing.
  void SayWhoCalls() {
    if (!incoming_.has_join()) return;
    v1::Join& join = *incoming_.mutable_join();
    join.clear_caller();
    if (bearer_.kind == Bearer::Kind::kPart && bearer_.server_id == 0) {
      join.mutable_caller()->set_part_token_before(true);
    }
    if (bearer_.kind != Bearer::Kind::kUser) return;
    join.mutable_caller()->set_user(bearer_.user);
    join.mutable_caller()->set_token_ended(std::string(token_ended_.message()));
  }

  // The core forgets this stream as soon as the node is gone, which is before gRPC does.
  void LeaveCore() {
    if (!left_.exchange(true)) core_->CloseStream(id_);
  }

  absl::Status Queue(v1::ServerMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // The core says nothing else; should it ever, this node is not the one to read it.
    if (!MayHear(bearer_, purpose_, message)) {
      return absl::InternalError("the server had a message for another stream; connect again");
    }
    const size_t size = message.ByteSizeLong();
    const bool fits = waiting_.size() < kWaitingMessagesMax &&
                      (waiting_.empty() || waiting_bytes_ + size <= kWaitingBytesMax);
    if (!fits) {
      loads_->SayClosed(bearer_, "a node's stream");
      return absl::ResourceExhaustedError("this node does not read its stream; connect again");
    }
    const absl::Status room = loads_->AddStreamed(bearer_, size);
    if (!room.ok()) {
      loads_->SayClosed(bearer_, "a node's stream");
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
    // A write costs more than a message.
    while (!waiting_.empty() && outgoing_bytes_ + waiting_.front().bytes <= rpc::kBundleBytesMax) {
      *outgoing_.add_more() = std::move(waiting_.front().message);
      outgoing_bytes_ += waiting_.front().bytes;
      waiting_.pop_front();
    }
    stream_.Write(outgoing_, Begin(&written_));
  }

  // Ends the stream without writing what waits.
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

  // A status travels behind what was written before it, so a node that never reads would keep the
  // stream for good. Finish, which follows, ends the wait.
  void LimitClosing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (limited_) return;
    limited_ = true;
    const auto deadline =
        std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kCloseTimeout);
    close_limit_.Set(door_.threads.queue(), deadline, Begin(&expired_));
  }

  const Door door_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<v1::ServerMessage, v1::NodeMessage> stream_{&context_};
  OperationOf<NodeStream, &NodeStream::OnCome> came_{this};
  OperationOf<NodeStream, &NodeStream::AndRelease<&NodeStream::OnEnd>> ended_{this};
  OperationOf<NodeStream, &NodeStream::AndRelease<&NodeStream::OnSent>> opened_{this};
  OperationOf<NodeStream, &NodeStream::AndRelease<&NodeStream::OnReadDone>> read_{this};
  OperationOf<NodeStream, &NodeStream::AndRelease<&NodeStream::OnWriteDone>> written_{this};
  OperationOf<NodeStream, &NodeStream::AndRelease<&NodeStream::OnFinished>> finish_{this};
  OperationOf<NodeStream, &NodeStream::AndRelease<&NodeStream::OnCloseLimit>> expired_{this};
  // Its coming, and what tells of the call's end, from the start.
  std::atomic<int> under_way_{2};
  // Set once, before anything is read.
  std::shared_ptr<host::CoreThread> core_;
  Bearer bearer_;
  CallerLoads* loads_ = nullptr;
  absl::Status token_ended_;
  StreamId id_;
  std::shared_ptr<NodeStream> self_;
  // Whether the core does not know the stream: not yet, or not any more.
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
  // Nothing is said before the first message.
  StreamPurpose purpose_ ABSL_GUARDED_BY(mutex_);
  // Of these and of what is being written.
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // gRPC's while writing_ holds.
  v1::ServerMessage outgoing_ ABSL_GUARDED_BY(mutex_);
  size_t outgoing_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // Set: nothing more is accepted, and the stream ends with this.
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool limited_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

void ServeNodeStreams(v1::Rendezvous::AsyncService& service, CallThreads& threads,
                      const Admission& admission, const char* greeting) {
  std::make_shared<NodeStream>(Door{service, threads, admission, greeting})->Await();
}

}  // namespace cadre::service
