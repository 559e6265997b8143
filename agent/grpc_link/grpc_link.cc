#include "agent/grpc_link/grpc_link.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/grpc_link/link_status.h"
#include "base/status_macros.h"
#include "proto/channel_arguments.h"
#include "proto/rendezvous.grpc.pb.h"

namespace cadre {
namespace {

using Stream = grpc::ClientReaderWriter<v1::NodeMessage, v1::ServerMessage>;
// Unmoved by changes of the wall clock, which absl::Mutex in this version is not.
using Clock = std::chrono::steady_clock;

Clock::time_point In(absl::Duration duration) {
  return Clock::now() + absl::ToChronoMicroseconds(duration);
}

ClientTiming TimingOfSeveral() {
  return {kConnectTimeoutOfSeveral, kKeepaliveOfSeveral, kKeepaliveOfSeveral};
}

// One connection and its stream.
struct Attempt {
  std::string endpoint;
  grpc::ClientContext context;
  std::unique_ptr<Stream> stream;
  // One of our servers has answered: the writer may write.
  bool open = false;
  // It has taken this node in. For the connecting thread alone.
  bool welcome = false;
  bool over = false;
  // Why it was cancelled from this side.
  std::optional<absl::Status> cause;
};

// What waits to be written.
struct Outgoing {
  v1::NodeMessage message;
  size_t bytes = 0;
  // A store request over the size limit, without its operation: it is answered here.
  bool refused = false;
};

class GrpcLink final : public ServerLink {
 public:
  explicit GrpcLink(GrpcLinkOptions options) : options_(std::move(options)) {}
  ~GrpcLink() override { Stop(); }

  void Start(LinkCallbacks callbacks) override {
    callbacks_ = std::move(callbacks);
    thread_ = std::thread([this] { Run(); });
  }

  void Send(v1::NodeMessage message) override {
    Outgoing outgoing;
    outgoing.bytes = message.ByteSizeLong();
    outgoing.refused = outgoing.bytes > static_cast<size_t>(kMessageBytesMax);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_ || attempt_ == nullptr || !attempt_->open) return;
    if (outgoing.refused && !message.has_store()) {
      Cancel(absl::InvalidArgumentError(absl::StrCat(
          "a message of ", outgoing.bytes, " bytes to the server at ", attempt_->endpoint,
          " is over the limit of ", kMessageBytesMax, "; shorten the job's spec")));
      return;
    }
    if (outgoing.refused) {
      message.mutable_store()->clear_operation();
      outgoing.bytes = message.ByteSizeLong();
    }
    if (queue_.size() >= kLinkQueueMessagesMax ||
        queue_bytes_ + outgoing.bytes > kLinkQueueBytesMax) {
      Cancel(absl::UnavailableError(absl::StrCat("the server at ", attempt_->endpoint,
                                                 " does not take what this node sends")));
      return;
    }
    outgoing.message = std::move(message);
    queue_bytes_ += outgoing.bytes;
    queue_.push_back(std::move(outgoing));
    changed_.notify_all();
  }

  void Stop() override {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
      // The writer says that nothing more comes, and the server ends the stream in return: proof
      // that it has read everything.
      if (attempt_ != nullptr && attempt_->open) {
        changed_.wait_until(lock, In(kLinkFlushTimeout), [this] { return attempt_ == nullptr; });
      }
      if (attempt_ != nullptr) attempt_->context.TryCancel();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  // --- the connecting and reading thread ---

  void Run() {
    std::minstd_rand random{std::random_device{}()};
    absl::Duration backoff = kReconnectBackoffMin;
    for (;;) {
      bool welcome = false;
      const absl::Status status = RunRound(&welcome);
      Call([&] { callbacks_.on_down(status); });
      if (IsFinal(status)) return;
      // A stream that opens is not enough: a server whose disk is full answers, and lets nobody in.
      if (welcome) backoff = kReconnectBackoffMin;
      // Jitter keeps a thousand agents from coming back at one moment.
      const double part = std::uniform_real_distribution<double>(0.5, 1.0)(random);
      if (StopsWithin(part * backoff)) return;
      backoff = std::min(2 * backoff, kReconnectBackoffMax);
    }
  }

  // Tries the servers in turn until a stream was opened and has ended; why it has, or why there was
  // none. `welcome`: the node was taken in on it.
  absl::Status RunRound(bool* welcome) {
    std::vector<absl::Status> failed;
    for (size_t i = 0; i < options_.endpoints.size(); ++i) {
      Attempt attempt;
      attempt.endpoint = options_.endpoints[next_];
      // The server that has just gone is the last one to look for another at.
      next_ = (next_ + 1) % options_.endpoints.size();
      const absl::Status status = RunAttempt(attempt);
      *welcome = attempt.welcome;
      if (attempt.open || IsFinal(status)) return status;
      failed.push_back(status);
    }
    return NoneReached(failed);
  }

  // Why the stream ended, or could not be opened.
  absl::Status RunAttempt(Attempt& attempt) {
    RETURN_IF_ERROR(CheckEndpoint(attempt.endpoint));
    ASSIGN_OR_RETURN(const auto credentials, MakeChannelCredentials(options_.security));
    grpc::ChannelArguments arguments =
        ClientChannelArguments(options_.endpoints.size() > 1 ? TimingOfSeveral() : ClientTiming());
    // A connection of its own for each attempt: one that is shared remembers failures, and would
    // repeat the last one instead of trying.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub = v1::Rendezvous::NewStub(
        grpc::CreateCustomChannel(attempt.endpoint, credentials, arguments));
    if (!options_.token.empty()) attempt.context.AddMetadata(kTokenMetadata, options_.token);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return absl::CancelledError("stopped");
      attempt_ = &attempt;
    }
    std::thread writer([this, &attempt] { WriteAll(attempt); });
    // Returns when the connection is made or has failed.
    attempt.stream = stub->Attach(&attempt.context);
    ReadAll(attempt);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      attempt.over = true;
      changed_.notify_all();
    }
    writer.join();
    const absl::Status status = FromGrpcStatus(attempt.stream->Finish());
    const std::lock_guard<std::mutex> lock(mutex_);
    attempt_ = nullptr;
    queue_.clear();
    queue_bytes_ = 0;
    changed_.notify_all();
    if (attempt.cause.has_value()) return *attempt.cause;
    return DescribeEnd(attempt.endpoint, status, attempt.open);
  }

  void ReadAll(Attempt& attempt) {
    attempt.stream->WaitForInitialMetadata();
    v1::ServerMessage message;
    if (attempt.context.GetServerInitialMetadata().count(kServerMetadata) == 0) {
      // Failed, refused, or a stranger; the writer's watch bounds how long a stranger may talk.
      while (attempt.stream->Read(&message)) message.Clear();
      return;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      attempt.open = true;
      changed_.notify_all();
    }
    Call([&] { callbacks_.on_up(); });
    while (attempt.stream->Read(&message)) {
      auto more = std::move(*message.mutable_more());
      PassOn(attempt, std::move(message));
      for (v1::ServerMessage& next : more) PassOn(attempt, std::move(next));
      message.Clear();
    }
  }

  void PassOn(Attempt& attempt, v1::ServerMessage message) {
    attempt.welcome = attempt.welcome || message.has_welcome();
    Call([&] { callbacks_.on_message(std::move(message)); });
  }

  bool StopsWithin(absl::Duration duration) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_until(lock, In(duration), [this] { return stopping_; });
  }

  // --- the writing thread, which also watches that the stream opens in time ---

  void WriteAll(Attempt& attempt) {
    if (!AwaitOpen(attempt)) return;
    for (;;) {
      std::optional<Outgoing> next;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return attempt.over || stopping_ || !queue_.empty(); });
        if (attempt.over) return;
        if (!queue_.empty()) next = TakeBundle();
      }
      if (!next.has_value()) {
        attempt.stream->WritesDone();
        return;
      }
      if (next->refused) {
        AnswerRefused(next->message);
      } else if (!attempt.stream->Write(next->message)) {
        // The reading thread learns why.
        return;
      }
    }
  }

  // The next message and, because a write costs more than a message, those behind it. With mutex_
  // held.
  Outgoing TakeBundle() {
    Outgoing first = TakeFront();
    size_t bytes = first.bytes;
    while (!first.refused && !queue_.empty() && !queue_.front().refused &&
           bytes + queue_.front().bytes <= kBundleBytesMax) {
      bytes += queue_.front().bytes;
      *first.message.add_more() = TakeFront().message;
    }
    return first;
  }

  Outgoing TakeFront() {
    Outgoing front = std::move(queue_.front());
    queue_.pop_front();
    queue_bytes_ -= front.bytes;
    return front;
  }

  bool AwaitOpen(Attempt& attempt) {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool decided = changed_.wait_until(
        lock, In(kLinkOpenTimeout), [&] { return attempt.open || attempt.over || stopping_; });
    if (!decided) {
      Cancel(
          absl::DeadlineExceededError(absl::StrCat("no answer from ", attempt.endpoint, " within ",
                                                   absl::FormatDuration(kLinkOpenTimeout))));
    }
    return attempt.open;
  }

  void AnswerRefused(const v1::NodeMessage& message) {
    v1::ServerMessage answer;
    answer.set_job(message.job());
    answer.set_generation(message.generation());
    v1::StoreReply* reply = answer.mutable_store();
    reply->set_request_id(message.store().request_id());
    reply->set_client(message.store().client());
    reply->set_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
    reply->set_message(
        absl::StrCat("the request is over the limit of ", kMessageBytesMax, " bytes"));
    Call([&] { callbacks_.on_message(std::move(answer)); });
  }

  // --- both ---

  // One callback at a time, and none once Stop() was called. The lock is for nothing else.
  template <typename Callback>
  void Call(const Callback& callback) {
    const std::lock_guard<std::mutex> one_at_a_time(callback_mutex_);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
    }
    callback();
  }

  // Ends the attempt, for this reason. With mutex_ held.
  void Cancel(absl::Status cause) {
    if (!attempt_->cause.has_value()) attempt_->cause = std::move(cause);
    attempt_->context.TryCancel();
  }

  const GrpcLinkOptions options_;
  LinkCallbacks callbacks_;
  // Which endpoint is tried next; for the connecting thread alone.
  size_t next_ = 0;
  std::thread thread_;
  std::mutex callback_mutex_;

  // Guards all below and, in an Attempt, open, over and cause.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  // The one under way.
  Attempt* attempt_ = nullptr;
  std::deque<Outgoing> queue_;
  size_t queue_bytes_ = 0;
};

}  // namespace

std::unique_ptr<ServerLink> MakeGrpcLink(GrpcLinkOptions options) {
  QuietGrpcLog();
  return std::make_unique<GrpcLink>(std::move(options));
}

}  // namespace cadre
