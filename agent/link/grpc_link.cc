#include "agent/link/grpc_link.h"

#include <grpcpp/alarm.h>
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
#include "agent/link/link_queue.h"
#include "agent/link/link_status.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/threads/file_thread.h"
#include "base/tokens/renewed_token.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rpc/channels.h"
#include "rpc/message_limits.h"
#include "rpc/store_reply.h"
#include "rpc/tls/credentials.h"

namespace cadre::agent {
namespace {

// Not affected by changes of the wall clock, unlike absl::Mutex in this version.
using Clock = std::chrono::steady_clock;

Clock::time_point In(absl::Duration duration) {
  return Clock::now() + absl::ToChronoMicroseconds(duration);
}

rpc::ClientTiming TimingOfSeveral() {
  return {kConnectTimeoutOfSeveral, kKeepaliveOfSeveral, kKeepaliveOfSeveral};
}

gpr_timespec GprIn(absl::Duration duration) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_micros(absl::ToInt64Microseconds(duration), GPR_TIMESPAN));
}

// One connection to a server, with its stream. Completed operations are reported through its queue.
// Guarded by its link's mutex, except where noted.
struct Attempt {
  // Tags of the stream's operations, which the connecting thread, Send() and Stop() start.
  enum Tag : intptr_t { kStarted = 1, kHeaders, kRead, kWritten, kWritesDone, kRefusal, kFinished };

  Attempt() = default;
  ~Attempt() {
    stream.reset();
    queue.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue.Next(&tag, &ok)) {
    }
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // Returns the tag for an operation that is started.
  void* Begin(Tag tag) {
    ++under_way;
    return reinterpret_cast<void*>(tag);
  }
  void Finish() {
    over = true;
    stream->Finish(&end, Begin(kFinished));
  }

  uint64_t number = 0;
  std::string endpoint;
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::NodeMessage, v1::ServerMessage>> stream;
  // A Cadre server has answered, so the stream may be written to.
  bool open = false;
  // The server has welcomed the node. This and the next two are used by the connecting thread
  // alone.
  bool welcomed = false;
  bool finished = false;
  v1::ServerMessage incoming;
  // Owned by gRPC while `writing` holds.
  v1::NodeMessage outgoing;
  bool writing = false;
  // No more writes are started.
  bool over = false;
  // The number of operations that the queue has not returned.
  int under_way = 0;
  grpc::Status end;
  // Store requests that are refused here, and the alarm that wakes the connecting thread for them.
  std::deque<v1::NodeMessage> refused;
  grpc::Alarm refusal;
  // Why this side cancelled the attempt.
  std::optional<absl::Status> cause;
};

class GrpcLink final : public ServerLink {
 public:
  explicit GrpcLink(GrpcLinkOptions options)
      : options_(std::move(options)),
        token_(options_.token, options_.token_file),
        rule_(options_.returns_after_refusal) {
    CADRE_CHECK(!options_.endpoints.empty(), "a link needs a server");
  }
  ~GrpcLink() override { Stop(); }

  void Start(LinkCallbacks callbacks) override {
    callbacks_ = std::move(callbacks);
    thread_ = std::thread([this] { Run(); });
  }

  void Send(uint64_t stream, v1::NodeMessage message) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_ || attempt_ == nullptr || !attempt_->open) return;
    if (attempt_->number != stream) return;
    rpc::WakeGrpcTimersIfClockWasSetBack();
    const absl::Status added = queue_.Add(std::move(message));
    if (absl::IsInvalidArgument(added)) {
      return Cancel(absl::InvalidArgumentError(absl::StrCat(
          added.message(), " for the server at ", attempt_->endpoint, "; shorten the job's spec")));
    }
    if (!added.ok()) {
      return Cancel(absl::UnavailableError(absl::StrCat("the server at ", attempt_->endpoint,
                                                        " does not read what this node sends")));
    }
    WriteNext();
  }

  void Stop() override {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
      // The server is told that nothing more will come, and ends the stream in return, which proves
      // that it has read everything.
      if (attempt_ != nullptr && attempt_->open) {
        WriteNext();
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
    for (;;) {
      bool welcomed = false;
      const absl::Status status = RunRound(&welcomed);
      const RetryRule::Next next = rule_.RoundEnded(status, welcomed);
      Call([&] { callbacks_.on_down(next.status); });
      if (!next.retries) return;
      // Jitter keeps a thousand agents from reconnecting at the same moment.
      const double fraction = std::uniform_real_distribution<double>(0.5, 1.0)(random);
      if (StoppedWithin(fraction * next.backoff)) return;
    }
  }

  // Tries the servers in turn until a stream was opened and has ended. Returns why it ended, or why
  // none was opened. `welcomed`: the server had welcomed the node.
  absl::Status RunRound(bool* welcomed) {
    std::vector<absl::Status> failed;
    for (size_t i = 0; i < options_.endpoints.size(); ++i) {
      Attempt attempt;
      attempt.number = ++attempts_;
      attempt.endpoint = options_.endpoints[next_];
      // The server that has just gone is tried last.
      next_ = (next_ + 1) % options_.endpoints.size();
      const absl::Status status = RunAttempt(attempt);
      *welcomed = attempt.welcomed;
      if (attempt.open || IsFinal(status)) return status;
      failed.push_back(status);
    }
    return NoneReached(failed);
  }

  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const std::string& token) {
    const auto make = [security = options_.security, token] {
      return rpc::MakeChannelCredentials(security, token);
    };
    if (options_.security.tls_dir.empty()) return make();
    return files_.ResultWithin(kFileTaskHungAfter, make)
        .value_or(absl::DeadlineExceededError(
            absl::StrCat("the file system of ", options_.security.tls_dir, " does not answer")));
  }

  // Returns why the stream ended, or could not be opened.
  absl::Status RunAttempt(Attempt& attempt) {
    RETURN_IF_ERROR(CheckEndpoint(attempt.endpoint));
    const std::string token = token_.Current();
    const auto credentials = Credentials(token);
    if (!credentials.ok()) return rule_.FilesUnusable(credentials.status());
    grpc::ChannelArguments arguments = rpc::ClientChannelArguments(
        options_.endpoints.size() > 1 ? TimingOfSeveral() : rpc::ClientTiming());
    // Each attempt has its own connection: a shared one remembers failures, and would repeat the
    // last one instead of trying again.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub = v1::Rendezvous::NewStub(
        grpc::CreateCustomChannel(attempt.endpoint, *credentials, arguments));
    if (!token.empty()) attempt.context.AddMetadata(rpc::kTokenMetadata, token);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return absl::CancelledError("stopped");
      attempt.stream = stub->PrepareAsyncAttach(&attempt.context, &attempt.queue);
      attempt.stream->StartCall(attempt.Begin(Attempt::kStarted));
      attempt_ = &attempt;
    }
    AwaitEnd(attempt);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      attempt_ = nullptr;
      queue_ = {};
      changed_.notify_all();
    }
    if (attempt.cause.has_value()) return *attempt.cause;
    const absl::Status ended = rpc::FromGrpcStatus(attempt.end);
    if (server_ends_ && !attempt.open && IsRefused(ended)) return LauncherIsGone(attempt.endpoint);
    const absl::Status end = DescribeEnd(attempt.endpoint, ended, attempt.open);
    if (absl::IsUnauthenticated(end) && token_.Current() != token) {
      return RetryRule::TokenReplaced(end);
    }
    return end;
  }

  void AwaitEnd(Attempt& attempt) {
    void* tag = nullptr;
    bool ok = false;
    gpr_timespec deadline = GprIn(kLinkOpenTimeout);
    while (!attempt.finished || HasUnderWay(attempt)) {
      const auto got = attempt.queue.AsyncNext(&tag, &ok, deadline);
      if (got == grpc::CompletionQueue::GOT_EVENT) {
        Handle(attempt, static_cast<Attempt::Tag>(reinterpret_cast<intptr_t>(tag)), ok);
        if (!attempt.open) continue;
      } else {
        const std::lock_guard<std::mutex> lock(mutex_);
        Cancel(absl::DeadlineExceededError(absl::StrCat("no answer from ", attempt.endpoint,
                                                        " within ",
                                                        absl::FormatDuration(kLinkOpenTimeout))));
      }
      deadline = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    }
  }

  bool HasUnderWay(const Attempt& attempt) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return attempt.under_way > 0;
  }

  void Handle(Attempt& attempt, Attempt::Tag tag, bool ok) {
    if (tag == Attempt::kHeaders && ok) OnHeaders(attempt);
    if (tag == Attempt::kRead && ok) OnMessage(attempt);
    if (tag == Attempt::kRefusal) AnswerRefused(attempt);
    const std::lock_guard<std::mutex> lock(mutex_);
    --attempt.under_way;
    switch (tag) {
      case Attempt::kStarted:
        if (!ok) return attempt.Finish();
        return attempt.stream->ReadInitialMetadata(attempt.Begin(Attempt::kHeaders));
      case Attempt::kHeaders:
      case Attempt::kRead:
        if (!ok) return attempt.Finish();
        return attempt.stream->Read(&attempt.incoming, attempt.Begin(Attempt::kRead));
      case Attempt::kWritten:
        attempt.writing = false;
        // If the write failed, the end of the stream will tell why.
        if (ok) WriteNext();
        return;
      case Attempt::kFinished:
        attempt.finished = true;
        return;
      case Attempt::kWritesDone:
      case Attempt::kRefusal:
        return;
    }
  }

  // Checks whether a Cadre server has answered.
  void OnHeaders(Attempt& attempt) {
    // No greeting: failed, refused, or another kind of server, which the deadline cuts off.
    const auto& greeting = attempt.context.GetServerInitialMetadata();
    const auto found = greeting.find(rpc::kServerMetadata);
    if (found == greeting.end()) return;
    server_ends_ = found->second == rpc::kServerEndsWithLauncher;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      attempt.open = true;
    }
    Call([&] { callbacks_.on_up(attempt.number); });
  }

  void OnMessage(Attempt& attempt) {
    if (attempt.open) {
      auto more = std::move(*attempt.incoming.mutable_more());
      Deliver(attempt, std::move(attempt.incoming));
      for (v1::ServerMessage& next : more) Deliver(attempt, std::move(next));
    }
    attempt.incoming.Clear();
  }

  void Deliver(Attempt& attempt, v1::ServerMessage message) {
    attempt.welcomed = attempt.welcomed || message.has_welcome();
    Call([&] { callbacks_.on_message(std::move(message)); });
  }

  bool StoppedWithin(absl::Duration duration) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_until(lock, In(duration), [this] { return stopping_; });
  }

  // --- any thread, with mutex_ held ---

  void WriteNext() {
    Attempt& attempt = *attempt_;
    if (attempt.writing || attempt.over) return;
    for (v1::NodeMessage& refused : queue_.TakeRefused()) {
      attempt.refused.push_back(std::move(refused));
      if (attempt.refused.size() == 1) {
        attempt.refusal.Set(&attempt.queue, gpr_now(GPR_CLOCK_MONOTONIC),
                            attempt.Begin(Attempt::kRefusal));
      }
    }
    if (!queue_.empty()) {
      attempt.writing = true;
      attempt.outgoing = queue_.TakeBundle();
      attempt.stream->Write(attempt.outgoing, attempt.Begin(Attempt::kWritten));
    } else if (stopping_) {
      attempt.over = true;
      attempt.stream->WritesDone(attempt.Begin(Attempt::kWritesDone));
    }
  }

  // Ends the attempt for this reason.
  void Cancel(absl::Status cause) {
    if (!attempt_->cause.has_value()) attempt_->cause = std::move(cause);
    attempt_->context.TryCancel();
  }

  // --- the connecting and reading thread ---

  void AnswerRefused(Attempt& attempt) {
    std::deque<v1::NodeMessage> refused;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      refused.swap(attempt.refused);
    }
    for (const v1::NodeMessage& message : refused) {
      v1::ServerMessage answer;
      answer.set_job(message.job());
      answer.set_generation(message.generation());
      answer.set_server_id(message.server_id());
      *answer.mutable_store() = rpc::StoreErrorReply(
          message.store(),
          absl::InvalidArgumentError(
              absl::StrCat("the request is over the limit of ", rpc::kMessageBytesMax, " bytes")));
      Call([&] { callbacks_.on_message(std::move(answer)); });
    }
  }

  // Makes no callback once Stop() was called.
  template <typename Callback>
  void Call(const Callback& callback) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
    }
    callback();
  }

  const GrpcLinkOptions options_;
  RenewedToken token_;
  FileThread files_{{}};  // for TLS files, so that Stop() does not wait for a file system
  LinkCallbacks callbacks_;
  // This and the next four are used by the connecting thread alone.
  RetryRule rule_;
  // The endpoint to try next, and the number of attempts.
  size_t next_ = 0;
  uint64_t attempts_ = 0;
  // Whether the server that answered last is part of a launcher, so that its state is lost when the
  // launcher ends.
  bool server_ends_ = false;
  std::thread thread_;

  // Guards all members below, and those of an Attempt that other threads than the connecting one
  // use too.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  // The current one.
  Attempt* attempt_ = nullptr;
  LinkQueue queue_;
};

}  // namespace

std::unique_ptr<ServerLink> MakeGrpcLink(GrpcLinkOptions options) {
  rpc::QuietGrpcLog();
  rpc::KeepGrpcUp();
  return std::make_unique<GrpcLink>(std::move(options));
}

}  // namespace cadre::agent
