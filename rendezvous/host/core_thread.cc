#include "rendezvous/host/core_thread.h"

#include <sys/random.h>
#include <time.h>

#include <algorithm>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/threads/executor.h"
#include "google/protobuf/repeated_field.h"
#include "rendezvous/host/core_host.h"
#include "rendezvous/host/server_view.h"
#include "rendezvous/host/stream_registry.h"
#include "rpc/store_reply.h"

namespace cadre::host {
namespace {

constexpr Executor::Load kRoom = {kEventQueueLimit, kEventQueueBytesLimit};
// The thread wakes at least this often, whatever the core requests.
constexpr absl::Duration kLongestWait = absl::Minutes(1);

std::vector<v1::JobStatus> CopyOf(const std::vector<std::shared_ptr<const v1::JobStatus>>& list) {
  std::vector<v1::JobStatus> jobs;
  jobs.reserve(list.size());
  for (const auto& job : list) jobs.push_back(*job);
  return jobs;
}

CoreConfig WithServerId(CoreConfig config, const log::RecordLog* log) {
  if (log != nullptr) config.server_id = log->server_id();
  return config;
}

}  // namespace

CoreConfig NewCoreConfig() {
  CoreConfig config;
  if (getrandom(&config.server_id, sizeof(config.server_id), 0) !=
      static_cast<ssize_t>(sizeof(config.server_id))) {
    config.server_id = static_cast<uint64_t>(MonoNow().micros());
  }
  timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  config.unix_ms_at_zero =
      int64_t{wall.tv_sec} * 1000 + wall.tv_nsec / 1000000 - MonoNow().micros() / 1000;
  return config;
}

struct CoreThread::State {
  State(const CoreConfig& config, LogFunction log, log::OpenedLog durable, AccountFunction account)
      : server_id(config.server_id),
        host(config, std::move(log), std::move(durable), registry, {}, std::move(account)) {}

  // Makes a task in which the thread handles the event. `bytes` as in Executor::Task.
  Executor::Task TaskOf(Event&& event, size_t bytes) {
    return {[this, event = std::move(event)]() mutable {
              if (!over) host.Handle(std::move(event));
            },
            false, bytes};
  }
  bool Enqueue(Event&& event, size_t bytes = 0) {
    return executor.Add(TaskOf(std::move(event), bytes), kRoom);
  }
  // Enqueues one message and the `more` that came with it.
  absl::Status EnqueueMessages(StreamId stream, v1::NodeMessage message,
                               google::protobuf::RepeatedPtrField<v1::NodeMessage> more) {
    std::vector<Executor::Task> tasks;
    tasks.reserve(static_cast<size_t>(more.size()) + 1);
    const auto add = [&](v1::NodeMessage&& received) {
      const size_t bytes = received.ByteSizeLong() + 1;
      tasks.push_back(TaskOf(NodeMessageReceived{stream, std::move(received)}, bytes));
    };
    add(std::move(message));
    for (v1::NodeMessage& next : more) add(std::move(next));
    bool room = true;
    // After a StreamClosed they would bring back a node that has gone.
    registry.IfOpen(stream, [&] { room = executor.AddAll(std::move(tasks), kRoom); });
    if (room) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        "the server is overloaded: too many messages wait to be handled; connect again later");
  }
  void Leave() {
    host.Flush();
    executor.Leave();
  }

  // Runs `question` on the thread when all that was handled before is saved, or `refuse` instead if
  // the thread has ended.
  void Run(std::function<void()> question, std::function<void(const absl::Status&)> refuse) {
    Executor::Task task;
    task.run = [this, question = std::move(question), refuse] {
      if (const auto why = registry.ended()) return refuse(*why);
      host.CommitAll();
      question();
    };
    if (!executor.Add(std::move(task))) refuse(*registry.ended());
  }
  // Calls `done` with the result of `question`, or with the reason why the thread has ended.
  template <typename Done, typename Question>
  void Ask(Done done, Question question) {
    Run([done, question = std::move(question)] { done(question()); }, done);
  }

  void Loop() {
    while (!stopping) {
      const MonoTime until = host.Due();
      if (host.IsFree()) executor.Rest(until);
      executor.Await(std::min(until, MonoNow() + kLongestWait));
      size_t handled = 0;
      for (Executor::Task& task : executor.Take()) {
        task.run();
        if (++handled % kEventsPerCommit == 0) host.SaveInBackground();
      }
      host.EndBatch(executor.has_tasks(), stopping);
    }
  }

  // Ends all waiting calls; called after the thread has ended.
  void EndAll(const absl::Status& why) {
    registry.EndAll(why);
    over = true;
    for (Executor::Task& task : executor.Close()) task.run();
  }

  const uint64_t server_id;
  StreamRegistry registry;
  // Used by the thread that has the executor's turn.
  CoreHost host;
  bool stopping = false;
  // EndAll was called: events that are still queued are dropped.
  bool over = false;
  Executor executor{{[this] { return host.Due(); }, nullptr}};
  std::thread thread;
};

CoreThread::CoreThread(const CoreConfig& config, LogFunction log, log::OpenedLog durable,
                       AccountFunction account) {
  const CoreConfig own = WithServerId(config, durable.log.get());
  state_ = std::make_unique<State>(own, std::move(log), std::move(durable), std::move(account));
  state_->thread = std::thread([state = state_.get()] { state->Loop(); });
}

CoreThread::~CoreThread() { Stop(absl::UnavailableError("the server is shutting down")); }

void CoreThread::Stop(const absl::Status& why) {
  if (!state_->thread.joinable()) return;
  state_->executor.Add({[state = state_.get()] { state->stopping = true; }});
  state_->thread.join();
  state_->EndAll(why);
}

uint64_t CoreThread::server_id() const { return state_->server_id; }

StreamId CoreThread::OpenStream(std::shared_ptr<NodeSink> sink) {
  return state_->registry.OpenStream(std::move(sink));
}

absl::Status CoreThread::Post(StreamId stream, v1::NodeMessage message) {
  auto more = std::move(*message.mutable_more());
  bool open = false;
  bool here = false;
  state_->registry.IfOpen(stream, [&] {
    open = true;
    here = state_->executor.Enter();
  });
  if (!open) return absl::OkStatus();
  if (!here) return state_->EnqueueMessages(stream, std::move(message), std::move(more));
  state_->host.Handle(NodeMessageReceived{stream, std::move(message)});
  for (v1::NodeMessage& next : more)
    state_->host.Handle(NodeMessageReceived{stream, std::move(next)});
  state_->Leave();
  return absl::OkStatus();
}

void CoreThread::CloseStream(StreamId stream) {
  state_->registry.Take(stream, [&] { state_->Enqueue(StreamClosed{stream}); });
}

CallId CoreThread::CallStore(v1::StoreRequest request,
                             std::function<void(const v1::StoreReply&)> done) {
  const size_t bytes = request.ByteSizeLong() + 1;
  const uint64_t client = request.client(), request_id = request.request_id();
  const CallId call = state_->registry.AddCall(request, std::move(done));
  if (state_->executor.Enter()) {
    state_->host.Handle(StoreCalled{call, std::move(request)});
    state_->Leave();
  } else if (!state_->Enqueue(StoreCalled{call, std::move(request)}, bytes)) {
    if (const auto refused = state_->registry.TakeCall(call)) {
      refused(rpc::StoreErrorReply(
          client, request_id,
          absl::ResourceExhaustedError(
              "the server is overloaded: too many messages wait to be handled; call again later")));
    }
  }
  return call;
}

void CoreThread::DropCall(CallId call) {
  if (state_->registry.TakeCall(call)) state_->Enqueue(StoreCallDropped{call});
}

void CoreThread::AskStatus(absl::string_view job, StatusDone done, OwnerCheck may) {
  state_->Ask(std::move(done),
              [host = &state_->host, job = std::string(job), may = std::move(may)] {
                return host->Status(host->NameOf(job, may));
              });
}

void CoreThread::AskUsage(absl::string_view job, UsageDone done, OwnerCheck may) {
  state_->Ask(std::move(done),
              [host = &state_->host, job = std::string(job), may = std::move(may)] {
                return host->core().Usage(host->NameOf(job, may));
              });
}

void CoreThread::AskAllStatuses(AllStatusesDone done) {
  state_->Ask(std::move(done), [host = &state_->host] { return CopyOf(*host->AllStatuses()); });
}

void CoreThread::AskJobList(JobListDone done) {
  state_->Ask(std::move(done), [host = &state_->host] { return host->AllStatuses(); });
}

void CoreThread::AskHealth(std::function<void(const absl::Status&)> done) {
  state_->Ask(std::move(done), [] { return absl::OkStatus(); });
}

void CoreThread::AskView(ViewDone done) {
  ServerView view;
  view.streams = state_->registry.streams();
  view.calls = state_->registry.calls();
  const Executor::Load load = state_->executor.load();
  view.queued_events = load.tasks;
  view.queued_bytes = load.bytes;
  state_->Ask(std::move(done), [host = &state_->host, view = std::move(view)] {
    ServerView all = view;
    all.counters = host->counters();
    all.jobs = CopyOf(*host->AllStatuses());
    all.saves = host->saves();
    return all;
  });
}

void CoreThread::AskCancel(const JobCancelled& cancelled, StatusDone done, OwnerCheck may) {
  state_->Ask(std::move(done), [host = &state_->host, cancelled, may = std::move(may)] {
    return host->Cancel(cancelled, may);
  });
}

void CoreThread::AskRequeue(const JobRequeued& requeued, StatusDone done, OwnerCheck may) {
  state_->Ask(std::move(done), [host = &state_->host, requeued, may = std::move(may)] {
    return host->Requeue(requeued, may);
  });
}

void CoreThread::AskSignal(const JobSignalled& signalled, StatusDone done, OwnerCheck may) {
  state_->Ask(std::move(done), [host = &state_->host, signalled, may = std::move(may)] {
    return host->Signal(signalled, may);
  });
}

void CoreThread::AskUpdate(const JobUpdated& updated, bool is_administrator, StatusDone done,
                           OwnerCheck may) {
  state_->Ask(std::move(done),
              [host = &state_->host, updated, is_administrator, may = std::move(may)] {
                return host->Update(updated, is_administrator, may);
              });
}

void CoreThread::AskSubmit(const v1::SubmitJobRequest& request, StatusDone done, OwnerCheck may) {
  JobSubmitted submitted{request.spec(), request.user(), request.request_id(), request.within(),
                         request.array()};
  state_->Ask(std::move(done), [host = &state_->host, submitted = std::move(submitted),
                                may = std::move(may)] { return host->Submit(submitted, may); });
}

void CoreThread::AskNodes(NodesDone done) {
  state_->Ask(std::move(done), [host = &state_->host] { return host->core().ClusterNodes(); });
}

void CoreThread::AskDrain(const v1::DrainNodeRequest& request, NodesDone done) {
  NodeDrained drained{request.node(), request.drained(), request.reason()};
  state_->Ask(std::move(done), [host = &state_->host, drained = std::move(drained)] {
    return host->Drain(drained);
  });
}

void CoreThread::AskLog(const v1::ReadLogRequest& request, LogReads::Done done, OwnerCheck may) {
  const auto read = [host = &state_->host, request, done, may = std::move(may)] {
    host->ReadLog(request, done, may);
  };
  state_->Run(read, done);
}

void CoreThread::AskStacks(const v1::GetStacksRequest& request, StackRequests::Done done,
                           OwnerCheck may) {
  const auto ask = [host = &state_->host, request, done, may = std::move(may)] {
    host->GetStacks(request, done, may);
  };
  state_->Run(ask, done);
}

namespace {

// Starts an operation that answers once, and waits for the answer, which always comes: the core
// thread empties its queue before it ends. The promise is shared because set_value still uses it
// when the waiting thread has already continued.
template <typename Answer, typename Ask>
Answer WaitFor(const Ask& ask) {
  auto promise = std::make_shared<std::promise<Answer>>();
  std::future<Answer> answer = promise->get_future();
  ask([promise](Answer value) { promise->set_value(std::move(value)); });
  return answer.get();
}

}  // namespace

absl::StatusOr<v1::JobStatus> CoreThread::Status(absl::string_view job) {
  return WaitFor<absl::StatusOr<v1::JobStatus>>(
      [&](StatusDone done) { AskStatus(job, std::move(done)); });
}

absl::StatusOr<std::vector<v1::JobStatus>> CoreThread::AllStatuses() {
  return WaitFor<absl::StatusOr<std::vector<v1::JobStatus>>>(
      [&](AllStatusesDone done) { AskAllStatuses(std::move(done)); });
}

absl::StatusOr<v1::JobStatus> CoreThread::Cancel(absl::string_view job, absl::string_view reason,
                                                 int signal, v1::FailureCause cause) {
  const JobCancelled cancelled{std::string(job), std::string(reason), signal, cause};
  return WaitFor<absl::StatusOr<v1::JobStatus>>(
      [&](StatusDone done) { AskCancel(cancelled, std::move(done)); });
}

}  // namespace cadre::host
