#include "rendezvous/host/core_thread.h"

#include <sys/random.h>
#include <time.h>

#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "rendezvous/host/core_thread_state.h"
#include "rpc/store_reply.h"

namespace cadre {

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

namespace {

CoreConfig WithServerId(CoreConfig config, const RecordLog* log) {
  if (log != nullptr) config.server_id = log->server_id();
  return config;
}

}  // namespace

CoreThread::CoreThread(const CoreConfig& config, LogFunction log, OpenedLog durable) {
  const CoreConfig own = WithServerId(config, durable.log.get());
  state_ = std::make_unique<State>(own, std::move(log), std::move(durable));
  state_->thread = std::thread([state = state_.get()] { state->Loop(); });
}

CoreThread::~CoreThread() { Stop(absl::UnavailableError("the server goes away")); }

void CoreThread::Stop(const absl::Status& why) {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_one();
  }
  if (!state_->thread.joinable()) return;
  state_->thread.join();
  state_->CloseAll(why);
}

StreamId CoreThread::OpenStream(std::shared_ptr<Outbox> outbox) {
  StreamId stream;
  std::optional<absl::Status> late;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    stream.value = ++state_->last_stream;
    late = state_->ended;
    if (!late.has_value()) state_->streams[stream] = outbox;
  }
  if (late.has_value()) outbox->Close(*late);
  return stream;
}

absl::Status CoreThread::Post(StreamId stream, v1::NodeMessage message) {
  auto more = std::move(*message.mutable_more());
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    // Behind a StreamClosed it would bring back a node that has gone.
    if (state_->streams.count(stream) == 0) return absl::OkStatus();
    if (!state_->EnterLocked()) {
      RETURN_IF_ERROR(state_->EnqueueSaidLocked(stream, std::move(message)));
      for (v1::NodeMessage& next : more) {
        RETURN_IF_ERROR(state_->EnqueueSaidLocked(stream, std::move(next)));
      }
      return absl::OkStatus();
    }
  }
  const auto handle = [&](v1::NodeMessage said) {
    Event event = NodeSaid{stream, std::move(said)};
    state_->HandleEvent(event);
  };
  handle(std::move(message));
  for (v1::NodeMessage& next : more) handle(std::move(next));
  state_->Leave();
  return absl::OkStatus();
}

void CoreThread::CloseStream(StreamId stream) {
  State::Task task;
  task.event = StreamClosed{stream};
  // Declared before the lock, so that it is let go after it.
  std::shared_ptr<Outbox> outbox;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto found = state_->streams.find(stream);
  if (found != state_->streams.end()) {
    outbox = std::move(found->second);
    state_->streams.erase(found);
  }
  state_->EnqueueLocked(std::move(task));
}

CallId CoreThread::CallStore(v1::StoreRequest request,
                             std::function<void(const v1::StoreReply&)> done) {
  State::Task task;
  task.bytes = request.ByteSizeLong() + 1;
  // Echoed in an answer that the core does not give; the operation itself is not needed for that.
  v1::StoreRequest echo;
  echo.set_request_id(request.request_id());
  echo.set_client(request.client());
  CallId call;
  absl::Status refused;
  bool here = false;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    call.value = ++state_->last_call;
    task.event = StoreCalled{call, std::move(request)};
    here = state_->EnterLocked();
    if (state_->ended.has_value()) {
      refused = *state_->ended;
    } else if (here || state_->EnqueueLocked(std::move(task))) {
      state_->calls[call] = State::Call{echo, done};
    } else {
      refused = absl::ResourceExhaustedError("the server has too much to do; call again later");
    }
  }
  if (here) {
    state_->HandleEvent(task.event);
    state_->Leave();
  }
  if (!refused.ok()) done(StoreErrorReply(echo, refused));
  return call;
}

void CoreThread::DropCall(CallId call) {
  State::Call dropped;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const auto found = state_->calls.find(call);
  if (found == state_->calls.end()) return;
  dropped = std::move(found->second);
  state_->calls.erase(found);
  State::Task task;
  task.event = StoreCallDropped{call};
  state_->EnqueueLocked(std::move(task));
}

void CoreThread::AskStatus(absl::string_view job, StatusDone done) {
  state_->Run([state = state_.get(), job = std::string(job),
               done](MonoTime now) { done(state->core.Status(now, job)); },
              done);
}

void CoreThread::AskAllStatuses(AllStatusesDone done) {
  state_->Run([state = state_.get(), done](MonoTime now) { done(state->core.AllStatuses(now)); },
              done);
}

void CoreThread::AskView(ViewDone done) {
  ServerView view;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    view.streams = state_->streams.size();
    view.calls = state_->calls.size();
    view.queued_events = state_->queued_events;
    view.queued_bytes = state_->queued_bytes;
  }
  const auto look = [state = state_.get(), done, view = std::move(view)](MonoTime now) mutable {
    view.counters = state->counters;
    view.jobs = state->core.AllStatuses(now);
    view.saves = state->commits.trouble().ok();
    done(std::move(view));
  };
  state_->Run(look, done);
}

void CoreThread::AskCancel(absl::string_view job, absl::string_view reason, int signal,
                           StatusDone done, OwnerCheck may) {
  JobCancelled cancelled{std::string(job), std::string(reason), signal};
  const auto cancel = [state = state_.get(), cancelled = std::move(cancelled), done,
                       may = std::move(may)](MonoTime now) {
    const absl::StatusOr<v1::JobStatus> before = state->core.Status(now, cancelled.job);
    if (!before.ok()) return done(before.status());
    const absl::Status allowed = may ? may(before->user()) : absl::OkStatus();
    if (!allowed.ok()) return done(allowed);
    if (!Lives(*before)) {
      return done(absl::FailedPreconditionError(absl::StrCat("job ", cancelled.job, " has ended")));
    }
    const absl::Status saved = state->StepNow(cancelled, now);
    if (!saved.ok()) return done(saved);
    done(state->core.Status(now, cancelled.job));
  };
  state_->Run(cancel, done);
}

void CoreThread::AskSubmit(const v1::SubmitJobRequest& request, StatusDone done, OwnerCheck may) {
  JobSubmitted submitted{request.spec(), request.user(), request.request_id()};
  const auto submit = [state = state_.get(), submitted = std::move(submitted), done,
                       may = std::move(may)](MonoTime now) {
    const absl::Status taken = state->Submit(submitted, may, now);
    if (!taken.ok()) return done(taken);
    // Not before the step, or more time would be left than there is at all.
    done(state->core.Status(MonoNow(), submitted.spec->name()));
  };
  state_->Run(submit, done);
}

void CoreThread::AskNodes(NodesDone done) {
  state_->Run([state = state_.get(), done](MonoTime) { done(state->core.ClusterNodes()); }, done);
}

void CoreThread::AskDrain(const v1::DrainNodeRequest& request, NodesDone done) {
  NodeDrained drained{request.node(), request.drained(), request.reason()};
  const auto drain = [state = state_.get(), drained = std::move(drained), done](MonoTime now) {
    const auto named = [&] {
      std::vector<v1::ClusterNodeStatus> named = state->core.ClusterNodes();
      named.erase(std::remove_if(named.begin(), named.end(),
                                 [&](const auto& node) { return node.name() != drained.node; }),
                  named.end());
      return named;
    };
    if (named().empty()) {
      return done(absl::NotFoundError(
          absl::StrCat("no node ", drained.node, " in the cluster; see 'cadre nodes'")));
    }
    const absl::Status saved = state->StepNow(drained, now);
    if (!saved.ok()) return done(saved);
    done(named());
  };
  state_->Run(drain, done);
}

void CoreThread::AskLog(const v1::ReadLogRequest& request, LogReads::Done done, OwnerCheck may) {
  state_->Run([state = state_.get(), request, done,
               may = std::move(may)](MonoTime) { state->ReadLog(request, done, may); },
              done);
}

namespace {

// Starts something that answers once, and waits for the answer. It comes: the core thread works off
// its whole queue before it ends. The promise is shared because set_value still uses it when the
// waiting thread has already gone on.
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
                                                 int signal) {
  return WaitFor<absl::StatusOr<v1::JobStatus>>(
      [&](StatusDone done) { AskCancel(job, reason, signal, std::move(done)); });
}

}  // namespace cadre
