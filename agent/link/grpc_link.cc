#include "agent/link/grpc_link.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/link/link_attempt.h"
#include "agent/link/link_queue.h"
#include "agent/link/link_status.h"
#include "agent/link/retry_rule.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/threads/file_thread.h"
#include "base/tokens/renewed_token.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rpc/channels.h"
#include "rpc/grpc_timers.h"
#include "rpc/limits.h"
#include "rpc/status.h"
#include "rpc/store_reply.h"
#include "rpc/tls/credentials.h"

namespace cadre::agent {
namespace {

// Unmoved by changes of the wall clock, which absl::Mutex in this version is not.
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
                                                        " does not take what this node sends")));
    }
    WriteNext();
  }

  void Stop() override {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
      // The server is told that nothing more comes, and ends the stream in return: proof that it
      // has read everything.
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
      bool welcome = false;
      const absl::Status status = RunRound(&welcome);
      const RetryRule::Next next = rule_.RoundEnded(status, welcome);
      Call([&] { callbacks_.on_down(next.status); });
      if (!next.tries_again) return;
      // Jitter keeps a thousand agents from coming back at one moment.
      const double part = std::uniform_real_distribution<double>(0.5, 1.0)(random);
      if (StopsWithin(part * next.pause)) return;
    }
  }

  // Tries the servers in turn until a stream was opened and has ended; why it has, or why there was
  // none. `welcome`: the node was taken in on it.
  absl::Status RunRound(bool* welcome) {
    std::vector<absl::Status> failed;
    for (size_t i = 0; i < options_.endpoints.size(); ++i) {
      Attempt attempt;
      attempt.number = ++attempts_;
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

  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const std::string& token) {
    const auto make = [security = options_.security, token] {
      return rpc::MakeChannelCredentials(security, token);
    };
    if (options_.security.tls_dir.empty()) return make();
    return files_.ResultWithin(kStandsStillAfter, make)
        .value_or(absl::DeadlineExceededError(
            absl::StrCat("the file system of ", options_.security.tls_dir, " does not answer")));
  }

  // Why the stream ended, or could not be opened.
  absl::Status RunAttempt(Attempt& attempt) {
    RETURN_IF_ERROR(CheckEndpoint(attempt.endpoint));
    const std::string token = token_.Current();
    const auto credentials = Credentials(token);
    if (!credentials.ok()) return rule_.FilesUnusable(credentials.status());
    grpc::ChannelArguments arguments = rpc::ClientChannelArguments(
        options_.endpoints.size() > 1 ? TimingOfSeveral() : rpc::ClientTiming());
    // A connection of its own for each attempt: one that is shared remembers failures, and would
    // repeat the last one instead of trying.
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
    if (tag == Attempt::kHeaders && ok) Greet(attempt);
    if (tag == Attempt::kRead && ok) Hear(attempt);
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
        // Where it failed the end of what is read tells why.
        if (ok) WriteNext();
        return;
      case Attempt::kFinished:
        attempt.finished = true;
        return;
      case Attempt::kSaidAll:
      case Attempt::kRefusal:
        return;
    }
  }

  // What it is that has answered.
  void Greet(Attempt& attempt) {
    // Failed, refused, or a stranger; the deadline bounds how long a stranger may talk.
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

  void Hear(Attempt& attempt) {
    if (attempt.open) {
      auto more = std::move(*attempt.incoming.mutable_more());
      PassOn(attempt, std::move(attempt.incoming));
      for (v1::ServerMessage& next : more) PassOn(attempt, std::move(next));
    }
    attempt.incoming.Clear();
  }

  void PassOn(Attempt& attempt, v1::ServerMessage message) {
    attempt.welcome = attempt.welcome || message.has_welcome();
    Call([&] { callbacks_.on_message(std::move(message)); });
  }

  bool StopsWithin(absl::Duration duration) {
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
      attempt.stream->WritesDone(attempt.Begin(Attempt::kSaidAll));
    }
  }

  // Ends the attempt, for this reason.
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

  // None once Stop() was called.
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
  FileThread files_{{}};  // for those of TLS: Stop() does not wait for a file system
  LinkCallbacks callbacks_;
  // For the connecting thread alone, with the next three.
  RetryRule rule_;
  // Which endpoint is tried next, and how many were.
  size_t next_ = 0;
  uint64_t attempts_ = 0;
  // The server that answered last is in a launcher, and all it knows ends with that.
  bool server_ends_ = false;
  std::thread thread_;

  // Guards all below and, in an Attempt, what is not said to be the connecting thread's.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  // The one under way.
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
