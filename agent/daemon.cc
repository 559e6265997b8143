#include "agent/daemon.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "agent/adoption.h"
#include "agent/core/agent_core.h"
#include "agent/display.h"
#include "agent/event_queue.h"
#include "agent/local/local_service.h"
#include "agent/node_workers.h"
#include "agent/signal_reader.h"
#include "agent/workers/ports.h"
#include "agent/workers/run_logs.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/threads/file_thread.h"

namespace cadre::agent {
namespace {

// Shorter differences are not sleep: the two clocks cannot be read at the same moment.
constexpr absl::Duration kShortestSleep = absl::Milliseconds(10);

// The interval at which a blocked display is checked.
constexpr absl::Duration kDisplayPause = absl::Milliseconds(5);
// If the display accepts nothing for longer, the agent stops reading the workers' pipes. It then
// still learns of the workers' exits, which would otherwise queue behind their output.
constexpr absl::Duration kLongDisplayPause = absl::Milliseconds(200);

// How long a log directory that does not answer may delay the launcher's exit.
constexpr absl::Duration kExitFilesLimit = absl::Seconds(5);

AgentConfig CoreConfig(const DaemonOptions& options, uint16_t held_port, absl::Duration asleep) {
  AgentConfig config = options.core;
  config.incarnation = options.incarnation();
  config.join.set_held_port(held_port);
  if (options.adoption.has_value()) {
    const v1::AgentRun& run = options.adoption->run;
    config.adopted = {GenerationOf(run), run.assign().local_world_size(),
                      MonoTime::FromMicros(options.adoption->inventory.hold_until_us) + -asleep,
                      options.adoption->inventory.stopping, run.assign().first_rank()};
  }
  return config;
}

absl::StatusOr<std::unique_ptr<LocalService>> OpenLocalService(const DaemonOptions& options) {
  LocalService::Options local;
  local.job = options.core.job;
  local.address = options.core.join.address();
  if (options.adoption.has_value()) local.directory = options.adoption->directory;
  return LocalService::Open(std::move(local));
}

// Its state is used by the loop's thread or, while that waits, by the thread that handles a store
// operation in its place (event_queue.h).
class Daemon {
 public:
  Daemon(const DaemonOptions& options, ServerLink& link, Display& display)
      : options_(options),
        link_(link),
        display_(display),
        logs_(options.output.log_dir, options.core.job),
        status_(display, [this] { return workers_->Progress(); }) {}

  absl::Status Open(std::unique_ptr<supervisor::Client> supervisor);
  absl::StatusOr<Exit> Run();

 private:
  void StartLink();
  absl::Status Loop();
  struct Ready {
    bool signals = false;
    bool suspend = false;
    bool worker = false;
    bool supervisor = false;
  };
  // Waits until there is work; returns which descriptors are readable.
  Ready Wait();
  // Whether the display accepts the workers' output. If it does not for more than a short pause,
  // reading stops and the workers block.
  bool DisplayTakes(MonoTime now);
  void ReadSupervisor();
  // Suspends this process and the workers. Deadlines that workers miss meanwhile are not hangs,
  // since the agent was suspended too.
  void Suspend();

  // Feeds the event to the core, executes the resulting commands, and handles the events that these
  // emit.
  void Feed(const AgentEvent& event);
  void FeedEmitted();
  void Step(const AgentEvent& event);
  void Execute(AgentCommand command);
  void Shutdown();
  std::function<std::vector<std::string>()> BeginExitFiles();

  const DaemonOptions& options_;
  ServerLink& link_;
  Display& display_;
  RunLogs logs_;
  StatusView status_;
  std::unique_ptr<SignalReader> signals_;
  std::unique_ptr<SuspendReader> suspend_;
  std::unique_ptr<EventQueue> queue_;
  std::unique_ptr<LocalService> local_;
  std::unique_ptr<AgentCore> core_;
  MonoTime display_took_at_;
  uint64_t stream_ = 0;                   // the link's stream that the core knows of
  absl::Duration asleep_ = TimeAsleep();  // the time asleep that the core knows of
  std::deque<AgentEvent> emitted_;        // events emitted by executing commands
  std::optional<Exit> exit_;
  // Last, because it uses the others, also from its own thread.
  std::unique_ptr<NodeWorkers> workers_;
};

absl::Status Daemon::Open(std::unique_ptr<supervisor::Client> supervisor) {
  ASSIGN_OR_RETURN(signals_, SignalReader::Make());
  ASSIGN_OR_RETURN(suspend_, SuspendReader::Make());
  const auto due = [this] {
    const WorkerSupervisor& supervisor = workers_->worker_supervisor();
    const bool at_once = exit_.has_value() || !supervisor.exists() || supervisor.WantsWrite();
    return at_once ? MonoTime() : core_->NextDeadline();
  };
  ASSIGN_OR_RETURN(queue_, EventQueue::Make([this](const AgentEvent& event) { Feed(event); }, due));
  ASSIGN_OR_RETURN(local_, OpenLocalService(options_));
  ASSIGN_OR_RETURN(PortReservation hold, PortReservation::Acquire(""));
  core_ = std::make_unique<AgentCore>(CoreConfig(options_, hold.port(), asleep_));
  const NodeWorkers::Uses uses = {
      display_,
      status_,
      *local_,
      logs_,
      [this](AgentEvent event) { emitted_.push_back(std::move(event)); },
      [queue = queue_.get()](AgentEvent event) { queue->Push(std::move(event)); }};
  workers_ = std::make_unique<NodeWorkers>(options_, std::move(supervisor), std::move(hold), uses);
  return absl::OkStatus();
}

void Daemon::StartLink() {
  EventQueue* queue = queue_.get();
  LinkCallbacks callbacks;
  callbacks.on_up = [queue](uint64_t stream) { queue->Push(LinkUp{stream}); };
  callbacks.on_message = [queue](v1::ServerMessage message) {
    queue->Push(ServerMessageReceived{std::move(message)});
  };
  callbacks.on_down = [queue](absl::Status status) { queue->Push(LinkDown{std::move(status)}); };
  link_.Start(std::move(callbacks));
}

absl::StatusOr<Exit> Daemon::Run() {
  if (options_.adoption.has_value()) workers_->AdoptWorkers();
  Feed(AgentTick{});  // from now on the core counts how long the server is away
  if (options_.adoption.has_value()) ReadSupervisor();
  StartLink();
  const absl::Status status = Loop();
  Shutdown();
  link_.Stop();
  if (!status.ok()) return status;
  CADRE_CHECK(exit_.has_value(), "the loop ends with the core's Exit");
  return *std::move(exit_);
}

// Starts to write the exit files. The returned function waits for that and returns the errors.
std::function<std::vector<std::string>()> Daemon::BeginExitFiles() {
  const auto written = std::make_shared<std::vector<std::string>>();
  FileThread& files = workers_->log_files();
  files.Post([written, logs = logs_, exit = *exit_, node = options_.core.join.node()] {
    *written = logs.WriteExitFiles(node, exit);
  });
  return [written, &files]() -> std::vector<std::string> {
    if (files.Drain(kExitFilesLimit)) return *written;
    return {"the verdict is not kept: the file system of the log directory does not answer"};
  };
}

void Daemon::Shutdown() {
  if (exit_.has_value() && exit_->leaves_workers) {
    workers_->worker_supervisor().Release();
    local_->KeepDirectory();
    return display_.Finish(*exit_);
  }
  std::function<std::vector<std::string>()> exit_files;
  if (exit_.has_value()) {
    exit_->own.set_run(logs_.run());
    exit_files = BeginExitFiles();
  }
  // The workers are gone. Standby processes are stopped before they notice that their agent leaves.
  workers_->worker_supervisor().Close();
  if (!exit_.has_value()) return;
  for (const std::string& warning : exit_files()) display_.Line(warning);
  display_.Finish(*exit_);
}

absl::Status Daemon::Loop() {
  while (!exit_.has_value()) {
    const Ready ready = Wait();
    queue_->HandleAll();
    if (queue_->overflowed()) {
      return absl::ResourceExhaustedError(
          "the agent does not keep up with the server; its workers are killed");
    }
    if (ready.signals) {
      for (const int signal : signals_->Read()) Feed(SignalReceived{signal});
    }
    if (ready.suspend) Suspend();
    if (ready.supervisor) ReadSupervisor();
    if (ready.worker) {
      for (const AgentEvent& event : local_->Read()) Feed(event);
    }
    workers_->Poll(MonoNow());
    FeedEmitted();
    if (core_->NextDeadline() <= MonoNow()) Feed(AgentTick{});
  }
  return absl::OkStatus();
}

bool Daemon::DisplayTakes(MonoTime now) {
  const bool takes = display_.TakesLines();
  if (takes || display_took_at_ == MonoTime()) display_took_at_ = now;
  if (takes != workers_->reads_output() && (takes || now - display_took_at_ >= kLongDisplayPause)) {
    workers_->ReadOutput(takes);
    FeedEmitted();
  }
  return takes;
}

Daemon::Ready Daemon::Wait() {
  const WorkerSupervisor& supervisor = workers_->worker_supervisor();
  const bool takes = DisplayTakes(MonoNow());
  const bool reads = takes || !workers_->reads_output();
  const short supervisor_events =
      static_cast<short>((reads ? POLLIN : 0) | (supervisor.WantsWrite() ? POLLOUT : 0));
  pollfd fds[] = {
      {signals_->fd(), POLLIN, 0}, {suspend_->fd(), POLLIN, 0},
      {local_->fd(), POLLIN, 0},   {supervisor.fd(), supervisor_events, 0},
      {queue_->fd(), POLLIN, 0},
  };
  const MonoTime until = std::min({core_->NextDeadline(), workers_->next_poll(),
                                   takes ? MonoTime::Never() : MonoNow() + kDisplayPause});
  const bool forever = until == MonoTime::Never();
  timespec timeout = {};
  if (!forever) timeout = absl::ToTimespec(std::max(until - MonoNow(), absl::ZeroDuration()));
  // Until HandleAll other threads may handle store operations in this one's place.
  queue_->Rest(until);
  // If interrupted, nothing is ready, and the loop calls Wait again.
  if (ppoll(fds, std::size(fds), forever ? nullptr : &timeout, nullptr) <= 0) return {};
  return {fds[0].revents != 0, fds[1].revents != 0, fds[2].revents != 0, fds[3].revents != 0};
}

void Daemon::Suspend() {
  workers_->SignalAll(SIGSTOP);
  suspend_->Suspend();
  workers_->SignalAll(SIGCONT);
}

void Daemon::ReadSupervisor() {
  absl::StatusOr<std::vector<supervisor::Frame>> frames = workers_->worker_supervisor().Read();
  if (!frames.ok()) {
    workers_->OnSupervisorGone(std::string(frames.status().message()));
    return FeedEmitted();
  }
  for (const supervisor::Frame& frame : *frames) {
    workers_->OnFrame(frame);
    FeedEmitted();
  }
}

void Daemon::Feed(const AgentEvent& event) {
  Step(event);
  FeedEmitted();
}

void Daemon::FeedEmitted() {
  while (!emitted_.empty()) {
    const AgentEvent event = std::move(emitted_.front());
    emitted_.pop_front();
    Step(event);
  }
}

void Daemon::Step(const AgentEvent& event) {
  if (const auto* up = std::get_if<LinkUp>(&event)) stream_ = up->stream;
  const absl::Duration slept = TimeAsleep() - asleep_;
  if (slept >= kShortestSleep) {
    asleep_ = asleep_ + slept;
    for (AgentCommand& command : core_->Step(MonoNow(), MachineSlept{slept})) {
      Execute(std::move(command));
    }
  }
  for (AgentCommand& command : core_->Step(MonoNow(), event)) Execute(std::move(command));
}

void Daemon::Execute(AgentCommand command) {
  if (auto* send = std::get_if<SendToServer>(&command))
    return link_.Send(stream_, std::move(send->message));
  if (auto* begin = std::get_if<BeginJob>(&command)) return workers_->Begin(*begin);
  if (auto* start = std::get_if<StartWorkers>(&command)) return workers_->Start(*start);
  if (auto* stop = std::get_if<StopWorkers>(&command)) return workers_->Stop(*stop);
  if (auto* hold = std::get_if<HoldWorkersUntil>(&command))
    return workers_->HoldUntil(hold->at + asleep_);
  if (auto* collect = std::get_if<CollectEvidence>(&command)) return workers_->Collect(*collect);
  if (auto* stacks = std::get_if<CollectStacks>(&command)) return workers_->Collect(*stacks);
  if (auto* ask = std::get_if<AskForCheckpoint>(&command)) return workers_->RequestCheckpoint(*ask);
  if (auto* signal = std::get_if<SignalWorkers>(&command)) return workers_->Signal(*signal);
  if (auto* note = std::get_if<NoteEndOfScript>(&command)) return workers_->NoteEnd(*note);
  if (auto* answer = std::get_if<StoreAnswer>(&command)) return local_->Answer(answer->reply);
  if (auto* say = std::get_if<Say>(&command)) return display_.Line(say->line);
  if (auto* show = std::get_if<ShowStatus>(&command)) {
    return status_.Set(std::move(show->status), MonoNow());
  }
  exit_ = std::move(std::get<Exit>(command));
}

}  // namespace

absl::StatusOr<Exit> RunAgent(const DaemonOptions& options,
                              std::unique_ptr<supervisor::Client> supervisor, ServerLink& link,
                              Display& display) {
  Daemon daemon(options, link, display);
  RETURN_IF_ERROR(daemon.Open(std::move(supervisor)));
  return daemon.Run();
}

}  // namespace cadre::agent
