// A unary call of a client, from waiting for it to its end.
#ifndef CADRE_RENDEZVOUS_SERVICE_UNARY_CALL_H_
#define CADRE_RENDEZVOUS_SERVICE_UNARY_CALL_H_

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "rendezvous/service/admission.h"
#include "rendezvous/service/call_threads.h"
#include "rendezvous/service/disclosure.h"
#include "rpc/channels.h"
#include "rpc/status.h"

namespace cadre::service {

// Shared with the core, whose answer may come when gRPC is already done with the call. Thread safe.
template <typename Request, typename Reply>
class UnaryCall final : public std::enable_shared_from_this<UnaryCall<Request, Reply>> {
 public:
  struct Method {
    CallThreads& threads;
    const Admission& admission;
    // Service::RequestX, which asks gRPC for the next call of X.
    std::function<void(grpc::ServerContext*, Request*, grpc::ServerAsyncResponseWriter<Reply>*,
                       grpc::ServerCompletionQueue*, void*)>
        request;
    // Sees to it that the call is ended; must not block.
    std::function<void(const Admitted&, const std::shared_ptr<UnaryCall>&)> serve;
  };

  // Serves every call that comes, until the server is shut down.
  static void Serve(std::shared_ptr<const Method> method) {
    const auto call = std::make_shared<UnaryCall>(std::move(method));
    call->self_ = call;
    call->context_.AsyncNotifyWhenDone(&call->over_);
    call->method_->request(&call->context_, &call->request_, &call->writer_,
                           call->method_->threads.queue(), &call->came_);
  }
  // For Serve alone.
  explicit UnaryCall(std::shared_ptr<const Method> method) : method_(std::move(method)) {}

  const Request& request() const { return request_; }

  // Nothing if it has ended before. Of an answer goes out what the caller may see.
  void End(absl::StatusOr<Reply> answer) {
    const absl::MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    ++under_way_;
    if (answer.ok()) ShowTo(bearer_, &*answer);
    if (answer.ok() && loads_ != nullptr) {
      const size_t bytes = answer->ByteSizeLong();
      const absl::Status room = loads_->AddUnread(bearer_, bytes);
      if (room.ok()) {
        unread_ = bytes;
        LimitReading();
      } else {
        answer = room;
      }
    }
    if (!answer.ok()) {
      // By which the caller knows that this is no word of gRPC's.
      context_.AddTrailingMetadata(rpc::kServerMetadata, rpc::kServerReturns);
      return writer_.FinishWithError(rpc::ToGrpcStatus(answer.status()), &finished_);
    }
    writer_.Finish(*answer, grpc::Status::OK, &finished_);
  }
  // The same, with an answer that is made on one of the calls' threads.
  void EndElsewhere(std::function<Reply()> make) {
    const absl::MutexLock lock(&mutex_);
    if (ended_ || make_ != nullptr) return;
    make_ = std::move(make);
    ++under_way_;
    elsewhere_.Set(method_->threads.queue(), std::chrono::system_clock::now(), &makes_answer_);
  }
  // Once: what is to be done when the caller has gone before the end.
  void WhenCancelled(std::function<void()> run) {
    {
      const absl::MutexLock lock(&mutex_);
      if (!cancelled_) {
        when_cancelled_ = std::move(run);
        return;
      }
    }
    run();
  }

 private:
  void OnCome(bool ok) {
    if (!ok) {
      // The server is being shut down. The last line, as below.
      const std::shared_ptr<UnaryCall> self = std::move(self_);
      return;
    }
    method_->threads.Enter();
    Serve(method_);
    const absl::StatusOr<Admitted> admitted = method_->admission(context_);
    const absl::Status may = admitted.ok() ? admitted->token_ended : admitted.status();
    if (!may.ok()) {
      End(may);
      return Release();
    }
    bearer_ = admitted->bearer;
    if (const absl::Status room = admitted->loads->BeginCall(bearer_); !room.ok()) {
      End(room);
      return Release();
    }
    loads_ = admitted->loads;
    method_->serve(*admitted, self_);
    Release();
  }

  void OnOver(bool) {
    if (context_.IsCancelled()) {
      std::function<void()> run;
      {
        const absl::MutexLock lock(&mutex_);
        cancelled_ = true;
        run.swap(when_cancelled_);
      }
      if (run) run();
      End(absl::CancelledError("the caller has gone"));
    }
    Release();
  }

  // The answer has gone out.
  void OnFinished(bool) {
    {
      const absl::MutexLock lock(&mutex_);
      reading_limit_.Cancel();
    }
    Release();
  }

  // What fits into gRPC's buffers goes out whether it is read or not.
  void LimitReading() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (unread_ <= rpc::kReadAheadBytes) return;
    const auto deadline =
        std::chrono::system_clock::now() + absl::ToChronoMilliseconds(loads_->limits().unread_for);
    ++under_way_;
    reading_limit_.Set(method_->threads.queue(), deadline, &unread_for_long_);
  }
  void OnElsewhere(bool) {
    std::function<Reply()> make;
    {
      const absl::MutexLock lock(&mutex_);
      make = make_;
    }
    End(make());
    Release();
  }
  void OnReadingLimit(bool expired) {
    if (expired) {
      loads_->SayClosed(bearer_, "an answer");
      context_.TryCancel();
    }
    Release();
  }

  // An operation has ended, and its reaction too. After the last gRPC knows this object no more.
  void Release() {
    if (--under_way_ > 0) return;
    if (loads_ != nullptr) {
      const absl::MutexLock lock(&mutex_);
      loads_->RemoveUnread(bearer_, unread_);
      loads_->EndCall(bearer_);
    }
    method_->threads.Leave();
    // The last line: nothing of this object may be used after it.
    const std::shared_ptr<UnaryCall> self = std::move(self_);
  }

  const std::shared_ptr<const Method> method_;
  std::shared_ptr<UnaryCall> self_;
  grpc::ServerContext context_;
  grpc::ServerAsyncResponseWriter<Reply> writer_{&context_};
  Request request_;
  // Set before anything is answered. Loads: null where it is not counted.
  Bearer bearer_;
  CallerLoads* loads_ = nullptr;
  OperationOf<UnaryCall, &UnaryCall::OnCome> came_{this};
  OperationOf<UnaryCall, &UnaryCall::OnOver> over_{this};
  OperationOf<UnaryCall, &UnaryCall::OnFinished> finished_{this};
  OperationOf<UnaryCall, &UnaryCall::OnElsewhere> makes_answer_{this};
  OperationOf<UnaryCall, &UnaryCall::OnReadingLimit> unread_for_long_{this};
  grpc::Alarm elsewhere_;
  grpc::Alarm reading_limit_;
  // Its coming, and what tells that gRPC is done with it, from the start.
  std::atomic<int> under_way_{2};

  absl::Mutex mutex_;
  std::function<Reply()> make_ ABSL_GUARDED_BY(mutex_);
  size_t unread_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> when_cancelled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::service

#endif  // CADRE_RENDEZVOUS_SERVICE_UNARY_CALL_H_
