#include "agent/store_streams.h"

#include <deque>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "agent/worker_calls.h"

namespace cadre {

// At most one read and one write are in flight. Starting an operation under mutex_ is safe, since
// gRPC runs no reaction inside Start* or Finish.
class StoreStreams::Stream final : public grpc::ServerBidiReactor<v1::StoreRequest, v1::StoreReply>,
                                   public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(StoreStreams& service) : service_(service) {}

  // With another status than OK it ends at once.
  void Open(const grpc::Status& status) {
    self_ = shared_from_this();
    if (!status.ok()) return End(status);
    const absl::MutexLock lock(&mutex_);
    if (!finished_) StartRead(&incoming_);
  }

  void Send(v1::StoreReply reply) {
    const absl::MutexLock lock(&mutex_);
    if (finished_) return;
    outbox_.push_back(std::move(reply));
    WriteNext();
  }

  void End(const grpc::Status& status) {
    const absl::MutexLock lock(&mutex_);
    if (finished_) return;
    finished_ = true;
    outbox_.clear();
    // The service may be gone when this object is.
    service_.Leave(self_);
    Finish(status);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    {
      const absl::MutexLock lock(&mutex_);
      if (finished_) return;
      ++unanswered_;
    }
    service_.Ask(self_, std::move(incoming_));
    incoming_.Clear();
    const absl::MutexLock lock(&mutex_);
    if (finished_) return;
    paused_ = unanswered_ >= kMaxCallsPerStream;
    if (!paused_) StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return End(grpc::Status::CANCELLED);
    const absl::MutexLock lock(&mutex_);
    writing_ = false;
    --unanswered_;
    WriteNext();
    if (!paused_ || finished_ || unanswered_ >= kMaxCallsPerStream) return;
    paused_ = false;
    StartRead(&incoming_);
  }

  void OnCancel() override { End(grpc::Status::CANCELLED); }

  void OnDone() override {
    // The last line: nothing of this object may be used after it.
    const std::shared_ptr<Stream> self = std::move(self_);
  }

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_ || outbox_.empty()) return;
    writing_ = true;
    outgoing_ = std::move(outbox_.front());
    outbox_.pop_front();
    StartWrite(&outgoing_);
  }

  StoreStreams& service_;
  std::shared_ptr<Stream> self_;
  // Used by OnReadDone alone, which never runs twice at once.
  v1::StoreRequest incoming_;
  absl::Mutex mutex_;
  std::deque<v1::StoreReply> outbox_ ABSL_GUARDED_BY(mutex_);
  // gRPC's while writing_ holds.
  v1::StoreReply outgoing_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Requests read whose answer has not been written.
  size_t unanswered_ ABSL_GUARDED_BY(mutex_) = 0;
  // Nothing is read until there are fewer of them.
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
};

grpc::ServerBidiReactor<v1::StoreRequest, v1::StoreReply>* StoreStreams::Converse(
    grpc::CallbackServerContext* context) {
  const auto stream = std::make_shared<Stream>(*this);
  grpc::Status refused = KnowsToken(*context, token_) ? grpc::Status::OK : WrongToken();
  {
    const absl::MutexLock lock(&mutex_);
    if (refused.ok() && closed_ != nullptr) refused = *closed_;
    if (refused.ok()) streams_.insert(stream);
  }
  stream->Open(refused);
  return stream.get();
}

void StoreStreams::Ask(const std::shared_ptr<Stream>& from, v1::StoreRequest request) {
  const Key key{request.client(), request.request_id()};
  absl::Status taken = Remember(key, from);
  if (taken.ok()) {
    taken = on_request_(std::move(request));
    if (taken.ok() || !Forget(key, from)) return;
  }
  v1::StoreReply refusal;
  refusal.set_client(key.first);
  refusal.set_request_id(key.second);
  refusal.set_code(static_cast<int>(taken.code()));
  refusal.set_message(std::string(taken.message()));
  from->Send(std::move(refusal));
}

void StoreStreams::Answer(const v1::StoreReply& reply) {
  std::vector<std::shared_ptr<Stream>> askers;
  {
    const absl::MutexLock lock(&mutex_);
    const auto range = waiting_.equal_range({reply.client(), reply.request_id()});
    for (auto it = range.first; it != range.second; ++it) askers.push_back(it->second);
    waiting_.erase(range.first, range.second);
  }
  for (const std::shared_ptr<Stream>& asker : askers) asker->Send(reply);
}

void StoreStreams::FinishAll(const grpc::Status& status) {
  std::set<std::shared_ptr<Stream>> streams;
  {
    const absl::MutexLock lock(&mutex_);
    closed_ = std::make_unique<grpc::Status>(status);
    streams = streams_;
  }
  for (const std::shared_ptr<Stream>& stream : streams) stream->End(status);
}

absl::Status StoreStreams::Remember(const Key& key, const std::shared_ptr<Stream>& from) {
  const absl::MutexLock lock(&mutex_);
  if (waiting_.size() >= kMaxStreamedCalls) {
    return absl::ResourceExhaustedError(absl::StrCat("this agent already has ", kMaxStreamedCalls,
                                                     " store operations waiting; try again later"));
  }
  waiting_.emplace(key, from);
  return absl::OkStatus();
}

bool StoreStreams::Forget(const Key& key, const std::shared_ptr<Stream>& from) {
  const absl::MutexLock lock(&mutex_);
  const auto range = waiting_.equal_range(key);
  for (auto it = range.first; it != range.second; ++it) {
    if (it->second != from) continue;
    waiting_.erase(it);
    return true;
  }
  return false;
}

void StoreStreams::Leave(const std::shared_ptr<Stream>& stream) {
  const absl::MutexLock lock(&mutex_);
  streams_.erase(stream);
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    it = it->second == stream ? waiting_.erase(it) : std::next(it);
  }
}

}  // namespace cadre
