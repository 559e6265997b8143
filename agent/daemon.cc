#include "agent/daemon.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/daemon_impl.h"
#include "agent/evidence/exit_report.h"
#include "agent/run_files.h"
#include "agent/workers/exit_files.h"
#include "base/clock.h"
#include "base/status_macros.h"

extern char** environ;

namespace cadre {

absl::Status Daemon::Open() {
  for (char** entry = environ; *entry != nullptr; ++entry) environment_.emplace_back(*entry);
  earlier_verdict_ = VerdictMark(options_.output.log_dir, options_.core.job);
  ASSIGN_OR_RETURN(signals_, SignalReader::Make());
  const auto due = [this] {
    const bool at_once = exit_.has_value() || supervisor_ == nullptr || supervisor_->WantsWrite();
    return at_once ? MonoTime() : core_->NextDeadline();
  };
  ASSIGN_OR_RETURN(queue_, EventQueue::Make([this](const AgentEvent& event) { Feed(event); }, due));
  collector_ = std::make_unique<EvidenceCollector>(
      [queue = queue_.get()](AgentEvent event) { queue->Push(std::move(event)); });
  agent::LocalService::Options local;
  local.job = options_.core.job;
  local.address = options_.core.join.address();
  if (options_.adoption) local.directory = options_.adoption->directory;
  ASSIGN_OR_RETURN(local_, agent::LocalService::Open(std::move(local)));
  ASSIGN_OR_RETURN(hold_, PortHold::Acquire(""));
  AgentConfig config = options_.core;
  config.join.set_held_port(hold_.port());
  if (options_.adoption) {
    const v1::AgentRun& run = options_.adoption->run;
    config.incarnation = run.incarnation();
    config.adopted = {GenerationOf(run), run.assign().local_world_size(),
                      MonoTime::FromMicros(options_.adoption->inventory.hold_until_us)};
  }
  incarnation_ = config.incarnation;
  spec_ = config.join.spec();
  unfit_ = options_.unfit;
  core_ = std::make_unique<AgentCore>(std::move(config));
  return absl::OkStatus();
}

void Daemon::StartLink() {
  EventQueue* queue = queue_.get();
  LinkCallbacks callbacks;
  callbacks.on_up = [queue] { queue->Push(LinkUp{}); };
  callbacks.on_message = [queue](v1::ServerMessage message) {
    queue->Push(ServerSaid{std::move(message)});
  };
  callbacks.on_down = [queue](absl::Status status) { queue->Push(LinkDown{std::move(status)}); };
  link_.Start(std::move(callbacks));
}

absl::StatusOr<Exit> Daemon::Run() {
  RETURN_IF_ERROR(Open());
  Feed(AgentTick{});  // from now on the core counts how long the server is away
  if (options_.adoption) TakeOver();
  StartLink();
  const absl::Status status = Loop();
  if (exit_ && exit_->leaves_workers) {
    supervisor_->LetGo();
    local_->KeepDirectory();
    display_.Finish(*exit_);
    link_.Stop();
    return *std::move(exit_);
  }
  // The workers are gone; processes that stand by go before they hear that their agent leaves.
  supervisor_.reset();
  if (exit_) {
    const ExitFiles files = {options_.output.log_dir, options_.core.job, run_,
                             options_.core.join.node(), earlier_verdict_};
    exit_->own.set_run(run_);
    for (const std::string& complaint : LeaveExitFiles(files, *exit_)) display_.Line(complaint);
    display_.Finish(*exit_);
  }
  link_.Stop();
  if (!status.ok()) return status;
  return *std::move(exit_);
}

absl::Status Daemon::Loop() {
  while (!exit_) {
    const Ready ready = Wait();
    queue_->HandleAll();
    if (queue_->overflowed()) {
      return absl::ResourceExhaustedError(
          "the agent does not keep up with the server; its workers are killed");
    }
    if (ready.signals) {
      for (const int signal : signals_->Read()) Feed(SignalReceived{signal});
    }
    if (ready.supervisor) ReadSupervisor();
    if (ready.worker) {
      for (const AgentEvent& event : local_->Read()) Feed(event);
    }
    if (poll_at_ <= MonoNow()) PollProgress();
    if (core_->NextDeadline() <= MonoNow()) Feed(AgentTick{});
  }
  return absl::OkStatus();
}

Daemon::Ready Daemon::Wait() {
  const short supervisor_events =
      POLLIN | (supervisor_ != nullptr && supervisor_->WantsWrite() ? POLLOUT : 0);
  pollfd fds[] = {
      {signals_->fd(), POLLIN, 0},
      {local_->fd(), POLLIN, 0},
      {supervisor_ != nullptr ? supervisor_->fd() : -1, supervisor_events, 0},
      {queue_->fd(), POLLIN, 0},
  };
  const MonoTime until = std::min(core_->NextDeadline(), poll_at_);
  const bool forever = until == MonoTime::Never();
  timespec timeout = {};
  if (!forever) timeout = absl::ToTimespec(std::max(until - MonoNow(), absl::ZeroDuration()));
  // Until HandleAll other threads handle store operations in this one's place.
  queue_->Rest(until);
  // Interrupted: nothing is ready, and the loop comes by here again.
  if (ppoll(fds, std::size(fds), forever ? nullptr : &timeout, nullptr) <= 0) return {};
  return {fds[0].revents != 0, fds[1].revents != 0, fds[2].revents != 0};
}

void Daemon::ReadSupervisor() {
  if (supervisor_ == nullptr) return;
  // Where nothing can be written, reading says why.
  if (supervisor_->WantsWrite()) supervisor_->Flush().IgnoreError();
  absl::StatusOr<std::vector<supervisor::Frame>> frames = supervisor_->Read();
  if (!frames.ok()) return LoseSupervisor(std::string(frames.status().message()));
  for (const supervisor::Frame& frame : *frames) OnFrame(frame);
}

void Daemon::LoseSupervisor(const std::string& how) {
  supervisor_.reset();  // kills what is left
  // One that cannot even start a worker has no better successor.
  absl::StatusOr<std::unique_ptr<supervisor::Client>> another =
      absl::UnavailableError("it had started no worker");
  if (std::exchange(supervisor_works_, false)) another = supervisor::Client::Start();
  if (!another.ok()) {
    display_.Line(absl::StrCat(how, "; no other one is started: ", another.status().message()));
    return Feed(SupervisorLost{});
  }
  display_.Line(absl::StrCat(how, "; another one is started, this node's workers were killed"));
  supervisor_ = *std::move(another);
  standbys_.clear();
  groups_.AllGone();
  const bool stopped = groups_.Stopped();
  const std::map<uint32_t, pid_t> pids = std::exchange(pids_, {});
  std::vector<WorkerDied> died;
  for (const auto& [local_rank, files] : files_) {
    FlushOutput(local_rank);
    v1::WorkerExit exit;
    exit.set_signal(SIGKILL);
    exit.set_ended_with(how);
    const auto pid = pids.find(local_rank);
    if (pid != pids.end()) exit.set_pid(pid->second);
    died.push_back({generation_, local_rank, std::move(exit)});
  }
  // Those that had ended before are known.
  for (const WorkerDied& event : died) Feed(event);
  if (stopped) Feed(Gone());
}

// Gives the event to the core, carries out what it asks for, and goes on with what that led to.
void Daemon::Feed(const AgentEvent& event) {
  if (const auto* said = std::get_if<ServerSaid>(&event);
      said != nullptr && said->message.has_welcome()) {
    if (spec_.command().empty()) spec_ = said->message.welcome().spec();
    for (const UnfitWorkers& unfit : std::exchange(unfit_, {})) {
      const std::string line = StopUnfit(unfit);
      if (!line.empty()) display_.Line(line);
    }
  }
  for (AgentCommand& command : core_->Step(MonoNow(), event)) Execute(std::move(command));
  while (!own_events_.empty()) {
    const AgentEvent own = std::move(own_events_.front());
    own_events_.pop_front();
    for (AgentCommand& command : core_->Step(MonoNow(), own)) Execute(std::move(command));
  }
}

void Daemon::Execute(AgentCommand command) {
  if (auto* send = std::get_if<SendUp>(&command)) return link_.Send(std::move(send->message));
  if (auto* start = std::get_if<StartWorkers>(&command)) return StartWorkersOf(*start);
  if (auto* stop = std::get_if<StopWorkers>(&command)) return StopWorkersOf(*stop);
  if (auto* hold = std::get_if<HoldWorkersUntil>(&command)) {
    for (const auto& [group, local_rank] : groups_.all()) {
      ToSupervisor(supervisor::HoldFrame{group, hold->at.micros()});
    }
    return;
  }
  if (auto* collect = std::get_if<CollectEvidence>(&command)) return Collect(*collect);
  if (auto* ask = std::get_if<AskForCheckpoint>(&command)) return AskWorkers(*ask);
  if (auto* answer = std::get_if<StoreAnswer>(&command)) return local_->Answer(answer->reply);
  if (auto* say = std::get_if<Say>(&command)) return display_.Line(say->line);
  if (auto* show = std::get_if<ShowStatus>(&command)) {
    status_ = std::move(show->status);
    return ShowStatusNow();
  }
  exit_ = std::move(std::get<Exit>(command));
}

void Daemon::ToSupervisor(const supervisor::Frame& frame) {
  if (supervisor_ == nullptr) return;
  const absl::Status sent = supervisor_->Send(frame);
  // That it is gone is found where it is read from.
  if (sent.ok() || absl::IsUnavailable(sent)) return;
  display_.Line(absl::StrCat("cannot give orders to cadre-supervisor: ", sent.message()));
  supervisor_.reset();
  own_events_.push_back(SupervisorLost{});
}

void Daemon::OnFrame(const supervisor::Frame& frame) {
  if (const auto* started = std::get_if<supervisor::StartedFrame>(&frame)) {
    const std::optional<uint32_t> local_rank = groups_.LocalRank(started->group);
    if (!local_rank) return;
    supervisor_works_ = true;
    if (started->was != 0) OnStandbyPlaced(started->was, *local_rank);
    pids_[*local_rank] = started->pid;
    return Feed(WorkerRuns{generation_, *local_rank, started->pid});
  }
  if (const auto* output = std::get_if<supervisor::OutputFrame>(&frame)) {
    const std::optional<uint32_t> local_rank = groups_.LocalRank(output->group);
    if (local_rank) OnOutput(*local_rank, *output);
    return;
  }
  if (const auto* exited = std::get_if<supervisor::ExitedFrame>(&frame)) {
    const std::optional<uint32_t> local_rank = groups_.LocalRank(exited->group);
    if (OnStandbyExited(*exited) || !local_rank) return;
    FlushOutput(*local_rank);
    pids_.erase(*local_rank);
    const PageOwner owner = {generation_, static_cast<int>(first_rank_ + *local_rank)};
    return Feed(WorkerDied{generation_, *local_rank, ExitOf(*exited),
                           LastPage(local_->directory(), owner, *local_rank)});
  }
  if (const auto* gone = std::get_if<supervisor::AllGoneFrame>(&frame)) {
    if (!groups_.LocalRank(gone->group)) return;
    groups_.Gone(gone->group);
    if (!groups_.Stopped()) return;
    for (const auto& [local_rank, output] : outputs_) FlushOutput(local_rank);
    return Feed(Gone());
  }
}

absl::StatusOr<Exit> RunAgent(const DaemonOptions& options,
                              std::unique_ptr<supervisor::Client> supervisor, ServerLink& link,
                              Display& display) {
  return Daemon(options, std::move(supervisor), link, display).Run();
}

}  // namespace cadre
