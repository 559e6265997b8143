#include "rendezvous/service/calls.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "proto/control.pb.h"
#include "rendezvous/service/permissions.h"
#include "rpc/channels.h"

namespace cadre::service {
namespace {

// One per two processors, because handling a message costs less than waking another thread. More
// threads help with TLS handshakes.
constexpr unsigned kThreadsMax = 4;

unsigned ThreadCount() {
  return std::clamp(std::thread::hardware_concurrency() / 2, 1u, kThreadsMax);
}

}  // namespace

CallThreads::CallThreads(std::unique_ptr<grpc::ServerCompletionQueue> queue)
    : queue_(std::move(queue)) {}

CallThreads::~CallThreads() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    all_over_.wait(lock, [this] { return calls_ == 0; });
  }
  queue_->Shutdown();
  for (std::thread& thread : threads_) thread.join();
  // Handles the operations that are left if the threads never started.
  if (threads_.empty()) Run();
}

void CallThreads::Start() {
  for (unsigned i = 0; i < ThreadCount(); ++i) threads_.emplace_back([this] { Run(); });
}

void CallThreads::Enter() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++calls_;
}

void CallThreads::Leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--calls_ == 0) all_over_.notify_all();
}

void CallThreads::Run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<Operation*>(tag)->Ended(ok);
}

namespace {

// A unary call, from waiting for it to its end. The core shares the object, because its answer may
// come after gRPC is done with the call. Thread safe.
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
    // Must cause the call to be ended, now or later; must not block.
    std::function<void(const Admitted&, const std::shared_ptr<UnaryCall>&)> serve;
  };

  // Serves every call until the server is shut down.
  static void Serve(std::shared_ptr<const Method> method) {
    const auto call = std::make_shared<UnaryCall>(std::move(method));
    call->self_ = call;
    call->context_.AsyncNotifyWhenDone(&call->over_);
    call->method_->request(&call->context_, &call->request_, &call->writer_,
                           call->method_->threads.queue(), &call->started_);
  }
  // Called by Serve only.
  explicit UnaryCall(std::shared_ptr<const Method> method) : method_(std::move(method)) {}

  const Request& request() const { return request_; }

  // Does nothing if the call has ended before. The answer is reduced to what the caller may see.
  void End(absl::StatusOr<Reply> answer) {
    const absl::MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    ++under_way_;
    if (answer.ok()) ShowTo(bearer_, &*answer);
    if (answer.ok() && loads_ != nullptr) {
      const size_t bytes = answer->ByteSizeLong();
      // Logs come in pieces, as fast as they are read, and have limits of their own.
      if (traffic_ != nullptr && !std::is_same_v<Reply, v1::ReadLogReply>) {
        traffic_->OnAnswered(bytes, MonoNow());
      }
      const absl::Status room = loads_->AddUnread(bearer_, bytes);
      if (room.ok()) {
        unread_ = bytes;
        LimitReading();
      } else {
        answer = room;
      }
    }
    if (!answer.ok()) {
      // It shows the client that the error comes from Cadre and not from gRPC.
      context_.AddTrailingMetadata(rpc::kServerMetadata, rpc::kServerReturns);
      return writer_.FinishWithError(rpc::ToGrpcStatus(answer.status()), &finished_);
    }
    writer_.Finish(*answer, grpc::Status::OK, &finished_);
  }
  // Ends the call with an answer that is made on one of the call threads.
  void EndOnCallThread(std::function<Reply()> make) {
    const absl::MutexLock lock(&mutex_);
    if (ended_ || make_ != nullptr) return;
    make_ = std::move(make);
    ++under_way_;
    make_answer_alarm_.Set(method_->threads.queue(), std::chrono::system_clock::now(),
                           &make_answer_);
  }
  // Sets, once, what to run if the client cancels the call or disconnects before its end.
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
  void OnStarted(bool ok) {
    if (!ok) {
      // The server is shutting down. This must be the last line, as in Release.
      const std::shared_ptr<UnaryCall> self = std::move(self_);
      return;
    }
    method_->threads.Enter();
    Serve(method_);
    const absl::StatusOr<Admitted> admitted = method_->admission(context_);
    absl::Status may = admitted.ok() ? admitted->token_ended : admitted.status();
    if (may.ok() && admitted->traffic != nullptr) may = admitted->traffic->MayAsk(MonoNow());
    if (!may.ok()) {
      End(may);
      return Release();
    }
    bearer_ = admitted->bearer;
    traffic_ = admitted->traffic;
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

  // The answer was sent.
  void OnFinished(bool) {
    {
      const absl::MutexLock lock(&mutex_);
      reading_limit_.Cancel();
    }
    Release();
  }

  // An answer that fits into gRPC's buffers is sent whether it is read or not.
  void LimitReading() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (unread_ <= rpc::kReadAheadBytes) return;
    const auto deadline =
        std::chrono::system_clock::now() + absl::ToChronoMilliseconds(loads_->limits().unread_for);
    ++under_way_;
    reading_limit_.Set(method_->threads.queue(), deadline, &reading_limit_passed_);
  }
  void OnMakeAnswer(bool) {
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
      loads_->LogClosed(bearer_, "an answer");
      context_.TryCancel();
    }
    Release();
  }

  // Called when an operation and its reaction have ended. After the last one gRPC does not use this
  // object any more.
  void Release() {
    if (--under_way_ > 0) return;
    if (loads_ != nullptr) {
      const absl::MutexLock lock(&mutex_);
      loads_->RemoveUnread(bearer_, unread_);
      loads_->EndCall(bearer_);
    }
    method_->threads.Leave();
    // This must be the last line: it may destroy this object.
    const std::shared_ptr<UnaryCall> self = std::move(self_);
  }

  const std::shared_ptr<const Method> method_;
  std::shared_ptr<UnaryCall> self_;
  grpc::ServerContext context_;
  grpc::ServerAsyncResponseWriter<Reply> writer_{&context_};
  Request request_;
  // Set before anything is answered. `loads_` is null if the call is not counted.
  Bearer bearer_;
  CallerLoads* loads_ = nullptr;
  std::shared_ptr<CallerTraffic> traffic_;
  OperationOf<UnaryCall, &UnaryCall::OnStarted> started_{this};
  OperationOf<UnaryCall, &UnaryCall::OnOver> over_{this};
  OperationOf<UnaryCall, &UnaryCall::OnFinished> finished_{this};
  OperationOf<UnaryCall, &UnaryCall::OnMakeAnswer> make_answer_{this};
  OperationOf<UnaryCall, &UnaryCall::OnReadingLimit> reading_limit_passed_{this};
  grpc::Alarm make_answer_alarm_;
  grpc::Alarm reading_limit_;
  // From the start two are under way: `started_` and `over_`.
  std::atomic<int> under_way_{2};

  absl::Mutex mutex_;
  std::function<Reply()> make_ ABSL_GUARDED_BY(mutex_);
  size_t unread_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> when_cancelled_ ABSL_GUARDED_BY(mutex_);
};

v1::ListJobsReply ReplyOf(const host::CoreHost::JobList& jobs) {
  v1::ListJobsReply reply;
  for (const auto& job : *jobs) *reply.add_jobs() = *job;
  return reply;
}
v1::ListNodesReply ReplyOf(std::vector<v1::ClusterNodeStatus> nodes) {
  v1::ListNodesReply reply;
  for (v1::ClusterNodeStatus& node : nodes) *reply.add_nodes() = std::move(node);
  return reply;
}
template <typename Reply>
Reply ReplyOf(Reply reply) {
  return reply;
}

// Ends the call with the core's answer.
template <typename Answer, typename Call>
auto EndOf(const std::shared_ptr<Call>& call) {
  return [call](absl::StatusOr<Answer> answer) {
    if (!answer.ok()) return call->End(answer.status());
    call->End(ReplyOf(*std::move(answer)));
  };
}

// Waits for calls of the methods of a service.
class Listener {
 public:
  Listener(CallThreads& threads, const Admission& admission)
      : threads_(threads), admission_(admission) {}

  template <typename Request, typename Reply, typename Ask, typename Serve>
  void Listen(const Ask& ask, const Serve& serve) {
    using Call = UnaryCall<Request, Reply>;
    Call::Serve(std::make_shared<const typename Call::Method>(
        typename Call::Method{threads_, admission_, ask, serve}));
  }

 private:
  CallThreads& threads_;
  const Admission& admission_;
};

// Requests the next call of a method from gRPC.
#define REQUEST_OF(service, Method)                                                \
  [&service](auto* context, auto* request, auto* writer, auto* queue, void* tag) { \
    service.Request##Method(context, request, writer, queue, queue, tag);          \
  }

// Ends the call if its caller may not make it.
template <typename Call>
bool IsAllowed(const std::shared_ptr<Call>& call, const absl::Status& may) {
  if (!may.ok()) call->End(may);
  return may.ok();
}

host::OwnerCheck OwnerCheckOf(const Bearer& bearer) {
  return [bearer](absl::string_view owner) { return MayUseJob(bearer, owner); };
}

void ServeJobs(v1::Control::AsyncService& service, Listener& listener) {
  listener.Listen<v1::ListJobsRequest, v1::ListJobsReply>(
      REQUEST_OF(service, ListJobs), [](const Admitted& admitted, const auto& call) {
        if (!IsAllowed(call, MayView(admitted.bearer))) return;
        // A long list is serialized on another thread to spare the core's thread.
        admitted.core->AskJobList([call](absl::StatusOr<host::CoreHost::JobList> jobs) {
          if (!jobs.ok()) return call->End(jobs.status());
          call->EndOnCallThread([jobs = *std::move(jobs)] { return ReplyOf(jobs); });
        });
      });
  listener.Listen<v1::GetJobRequest, v1::JobStatus>(
      REQUEST_OF(service, GetJob), [](const Admitted& admitted, const auto& call) {
        if (!IsAllowed(call, MayView(admitted.bearer))) return;
        admitted.core->AskStatus(call->request().name(), EndOf<v1::JobStatus>(call),
                                 OwnerCheckOf(admitted.bearer));
      });
  listener.Listen<v1::CancelJobRequest, v1::JobStatus>(
      REQUEST_OF(service, CancelJob), [](const Admitted& admitted, const auto& call) {
        if (!IsAllowed(call, MayView(admitted.bearer))) return;
        constexpr int kNoSignal = 0;
        admitted.core->AskCancel({call->request().name(), call->request().reason(), kNoSignal,
                                  v1::CANCELLED, call->request().at_once()},
                                 EndOf<v1::JobStatus>(call), OwnerCheckOf(admitted.bearer));
      });
  listener.Listen<v1::RequeueJobRequest, v1::JobStatus>(
      REQUEST_OF(service, RequeueJob), [](const Admitted& admitted, const auto& call) {
        if (!IsAllowed(call, MayView(admitted.bearer))) return;
        admitted.core->AskRequeue(
            {call->request().name(), call->request().reason(), call->request().hold()},
            EndOf<v1::JobStatus>(call), OwnerCheckOf(admitted.bearer));
      });
  listener.Listen<v1::SignalJobRequest, v1::JobStatus>(
      REQUEST_OF(service, SignalJob), [](const Admitted& admitted, const auto& call) {
        if (!IsAllowed(call, MayView(admitted.bearer))) return;
        admitted.core->AskSignal(
            {call->request().name(), call->request().signal(), call->request().target()},
            EndOf<v1::JobStatus>(call), OwnerCheckOf(admitted.bearer));
      });
  listener.Listen<v1::UpdateJobRequest, v1::JobStatus>(
      REQUEST_OF(service, UpdateJob), [](const Admitted& admitted, const auto& call) {
        if (!IsAllowed(call, MayView(admitted.bearer))) return;
        admitted.core->AskUpdate({call->request().name(), call->request().update()},
                                 admitted.bearer.kind == Bearer::Kind::kAdministrator,
                                 EndOf<v1::JobStatus>(call), OwnerCheckOf(admitted.bearer));
      });
  listener.Listen<v1::SubmitJobRequest, v1::JobStatus>(
      REQUEST_OF(service, SubmitJob), [](const Admitted& admitted, const auto& call) {
        if (!IsAllowed(call, MaySubmit(admitted.bearer, call->request()))) return;
        admitted.core->AskSubmit(call->request(), EndOf<v1::JobStatus>(call),
                                 OwnerCheckOf(admitted.bearer));
      });
  listener.Listen<v1::ReadLogRequest, v1::ReadLogReply>(
      REQUEST_OF(service, ReadLog), [](const Admitted& admitted, const auto& call) {
        if (!IsAllowed(call, MayView(admitted.bearer))) return;
        admitted.core->AskLog(call->request(), EndOf<v1::ReadLogReply>(call),
                              OwnerCheckOf(admitted.bearer));
      });
  listener.Listen<v1::GetStacksRequest, v1::GetStacksReply>(
      REQUEST_OF(service, GetStacks), [](const Admitted& admitted, const auto& call) {
        if (!IsAllowed(call, MayView(admitted.bearer))) return;
        admitted.core->AskStacks(call->request(), EndOf<v1::GetStacksReply>(call),
                                 OwnerCheckOf(admitted.bearer));
      });
}

void ServeNodes(v1::Control::AsyncService& service, Listener& listener) {
  listener.Listen<v1::ListNodesRequest, v1::ListNodesReply>(
      REQUEST_OF(service, ListNodes), [](const Admitted& admitted, const auto& call) {
        if (!IsAllowed(call, MayView(admitted.bearer))) return;
        const auto end = [call, server_id = admitted.core->server_id()](
                             absl::StatusOr<std::vector<v1::ClusterNodeStatus>> nodes) {
          if (!nodes.ok()) return call->End(nodes.status());
          v1::ListNodesReply reply = ReplyOf(*std::move(nodes));
          reply.set_server_id(server_id);
          call->End(std::move(reply));
        };
        admitted.core->AskNodes(end);
      });
  listener.Listen<v1::DrainNodeRequest, v1::ListNodesReply>(
      REQUEST_OF(service, DrainNode), [](const Admitted& admitted, const auto& call) {
        if (!IsAllowed(call, MayDrain(admitted.bearer))) return;
        admitted.core->AskDrain(call->request(), EndOf<std::vector<v1::ClusterNodeStatus>>(call));
      });
}

// Ends the call if there is no accounting to ask.
template <typename Call>
bool HasAccounting(const std::shared_ptr<Call>& call, const accounting::Accounting* accounting) {
  if (accounting == nullptr) {
    call->End(absl::FailedPreconditionError(
        "this server keeps no accounting; one that has a state directory does, and with --etcd one "
        "that is started with --accounting FILE"));
  }
  return accounting != nullptr;
}

void ServeAccounting(v1::Control::AsyncService& service, Listener& listener,
                     accounting::Accounting* accounting) {
  listener.Listen<v1::HistoryRequest, v1::HistoryReply>(
      REQUEST_OF(service, ListHistory), [accounting](const Admitted& admitted, const auto& call) {
        if (!IsAllowed(call, MayView(admitted.bearer)) || !HasAccounting(call, accounting)) return;
        accounting->AskHistory(call->request(), EndOf<v1::HistoryReply>(call));
      });
  listener.Listen<v1::UsageRequest, v1::UsageReply>(
      REQUEST_OF(service, GetUsage), [accounting](const Admitted& admitted, const auto& call) {
        if (!IsAllowed(call, MayView(admitted.bearer)) || !HasAccounting(call, accounting)) return;
        accounting->AskUsage(call->request(), EndOf<v1::UsageReply>(call));
      });
}

}  // namespace

void ServeStore(v1::Store::AsyncService& service, CallThreads& threads,
                const Admission& admission) {
  Listener(threads, admission)
      .Listen<v1::StoreRequest, v1::StoreReply>(
          REQUEST_OF(service, Execute), [](const Admitted& admitted, const auto& call) {
            if (!IsAllowed(call, MayCallStore(admitted.bearer))) return;
            const std::shared_ptr<host::CoreThread>& core = admitted.core;
            const CallId id = core->CallStore(
                call->request(), [call](const v1::StoreReply& reply) { call->End(reply); });
            call->WhenCancelled([core, id] { core->DropCall(id); });
          });
}

void ServeControl(v1::Control::AsyncService& service, CallThreads& threads,
                  const Admission& admission, accounting::Accounting* accounting) {
  Listener listener(threads, admission);
  ServeJobs(service, listener);
  ServeNodes(service, listener);
  ServeAccounting(service, listener, accounting);
}

#undef REQUEST_OF

}  // namespace cadre::service
