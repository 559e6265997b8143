#include "agent/daemon.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/core/exits.h"
#include "agent/event_queue.h"
#include "agent/evidence_collector.h"
#include "agent/exit_files.h"
#include "agent/local_service.h"
#include "agent/port_hold.h"
#include "agent/progress_watch.h"
#include "agent/rank_output.h"
#include "agent/run_files.h"
#include "agent/signal_reader.h"
#include "agent/worker_start.h"
#include "agent/worker_units.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/utf8.h"

extern char** environ;

namespace cadre {
namespace {

// Between two redraws that only progress asks for.
constexpr absl::Duration kProgressRedraw = absl::Milliseconds(100);
// Between two looks at pages and files of progress.
constexpr absl::Duration kProgressPoll = absl::Milliseconds(250);
constexpr int kInvalidEnvironment = EINVAL;

std::vector<std::string> InheritedEnvironment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

// How one worker's bytes become lines.
struct WorkerOutput {
  LineAssembler standard_output;
  LineAssembler standard_error;
  LineAssembler progress;
};

// What stays as it was when the process was started, also where it goes on in later generations.
struct WorkerFiles {
  std::vector<std::string> logs;  // its streams in files; the first that is not empty is quoted
  std::vector<std::string> silent_logs;  // of these, those that do not come as frames too
  std::string progress_file;
};

v1::WorkerExit ToProto(const ExitedFrame& frame) {
  v1::WorkerExit exit;
  exit.set_exit_code(frame.exit_code);
  exit.set_signal(frame.signal);
  exit.set_core_dumped(frame.core_dumped);
  exit.set_exec_errno(frame.exec_errno);
  exit.set_exec_step(frame.exec_step);
  exit.set_out_of_memory(frame.out_of_memory);
  // What workers write may be anything, and cut anywhere.
  exit.set_last_lines(ReplaceInvalidUtf8(frame.last_lines));
  exit.set_error_json(ReplaceInvalidUtf8(frame.error_json));
  exit.set_pid(frame.pid);
  return exit;
}

class Daemon {
 public:
  Daemon(const DaemonOptions& options, std::unique_ptr<SupervisorClient> supervisor,
         ServerLink& link, Display& display)
      : options_(options), supervisor_(std::move(supervisor)), link_(link), display_(display) {}

  absl::StatusOr<Exit> Run();

 private:
  absl::Status Open();
  void StartLink();
  absl::Status Loop();
  void Wait();
  void ReadSupervisor();

  void Feed(const AgentEvent& event);
  void Execute(AgentCommand command);
  void ForgetEarlierRun();
  void StartWorkersOf(const StartWorkers& command);
  void FailToStart(const StartWorkers& command, const absl::Status& why,
                   const DirectoryFailure& directory);
  void StopWorkersOf(const StopWorkers& command);
  void ToSupervisor(const Frame& frame);
  void LoseSupervisor();
  AllGone Gone();

  void OnFrame(Frame frame);
  void OnOutput(const OutputFrame& frame);
  void OnProgressLines(const OutputFrame& frame, const std::string& lines);
  void PollProgress();
  void StartOne(StartFrame frame, bool kept);
  void StartWatching();
  void Collect(const CollectEvidence& command);
  void FlushOutput(uint32_t local_rank);
  void ShowStatusNow();

  const DaemonOptions& options_;
  std::unique_ptr<SupervisorClient> supervisor_;  // null once it is lost
  ServerLink& link_;
  Display& display_;
  std::vector<std::string> environment_;
  PortHold hold_;
  std::unique_ptr<SignalReader> signals_;
  std::unique_ptr<EventQueue> queue_;
  std::unique_ptr<LocalService> local_;
  std::unique_ptr<AgentCore> core_;

  std::deque<AgentEvent> own_events_;  // what carrying out a command led to
  v1::JobSpec spec_;
  uint64_t generation_ = 0;
  std::string earlier_verdict_;  // of the file that was there before
  WorkerUnits units_;
  std::map<uint32_t, WorkerOutput> outputs_;
  std::map<uint32_t, WorkerFiles> files_;
  ProgressWatch watch_;
  MonoTime poll_at_ = MonoTime::Never();
  uint32_t first_rank_ = 0;
  std::map<uint32_t, pid_t> pids_;  // of workers that run, by local rank
  v1::JobStatus status_;
  MonoTime status_shown_at_;
  std::optional<Exit> exit_;
  std::unique_ptr<EvidenceCollector> collector_;  // last: its thread uses queue_
};

absl::Status Daemon::Open() {
  environment_ = InheritedEnvironment();
  earlier_verdict_ = VerdictMark(options_.output.log_dir, options_.core.job);
  ASSIGN_OR_RETURN(signals_, SignalReader::Make());
  ASSIGN_OR_RETURN(queue_, EventQueue::Make());
  collector_ = std::make_unique<EvidenceCollector>(
      [queue = queue_.get()](AgentEvent event) { queue->Push(std::move(event)); });
  LocalService::Options local;
  local.job = options_.core.job;
  local.address = options_.core.join.address();
  local.on_request = [queue = queue_.get()](v1::StoreRequest request) {
    return queue->PushRequest(std::move(request));
  };
  local.on_event = [queue = queue_.get()](AgentEvent event) { queue->Push(std::move(event)); };
  ASSIGN_OR_RETURN(local_, LocalService::Open(std::move(local)));
  ASSIGN_OR_RETURN(hold_, PortHold::Acquire(""));
  AgentConfig config = options_.core;
  config.join.set_held_port(hold_.port());
  spec_ = config.join.spec();
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
  StartLink();
  const absl::Status status = Loop();
  if (exit_) {
    const ExitFiles files = {options_.output.log_dir, options_.core.job, options_.core.join.node(),
                             earlier_verdict_};
    for (const std::string& complaint : LeaveExitFiles(files, *exit_)) display_.Line(complaint);
    display_.Finish(*exit_);
  }
  link_.Stop();
  if (!status.ok()) return status;
  return *std::move(exit_);
}

absl::Status Daemon::Loop() {
  while (!exit_) {
    Wait();
    for (AgentEvent& event : queue_->TakeAll()) Feed(event);
    if (queue_->overflowed()) {
      return absl::ResourceExhaustedError(
          "the agent does not keep up with the server; its workers are killed");
    }
    for (const int signal : signals_->Read()) Feed(SignalReceived{signal});
    ReadSupervisor();
    local_->Accept();
    if (poll_at_ <= MonoNow()) PollProgress();
    if (core_->NextDeadline() <= MonoNow()) Feed(AgentTick{});
  }
  return absl::OkStatus();
}

void Daemon::Wait() {
  const short supervisor_events =
      POLLIN | (supervisor_ != nullptr && supervisor_->WantsWrite() ? POLLOUT : 0);
  pollfd fds[] = {
      {queue_->fd(), POLLIN, 0},
      {signals_->fd(), POLLIN, 0},
      {local_->fd(), POLLIN, 0},
      {supervisor_ != nullptr ? supervisor_->fd() : -1, supervisor_events, 0},
  };
  const MonoTime deadline = std::min(core_->NextDeadline(), poll_at_);
  timespec timeout = {};
  if (deadline != MonoTime::Never()) {
    timeout = absl::ToTimespec(std::max(deadline - MonoNow(), absl::ZeroDuration()));
  }
  // Interrupted or not: the loop looks at everything.
  ppoll(fds, std::size(fds), deadline == MonoTime::Never() ? nullptr : &timeout, nullptr);
}

void Daemon::ReadSupervisor() {
  if (supervisor_ == nullptr) return;
  if (supervisor_->WantsWrite() && !supervisor_->Flush().ok()) return LoseSupervisor();
  absl::StatusOr<std::vector<Frame>> frames = supervisor_->Read();
  if (!frames.ok()) return LoseSupervisor();
  for (Frame& frame : *frames) OnFrame(std::move(frame));
}

void Daemon::LoseSupervisor() {
  if (supervisor_ == nullptr) return;
  supervisor_.reset();  // kills what is left
  Feed(SupervisorLost{});
}

void Daemon::ForgetEarlierRun() {
  if (options_.output.log_dir.empty()) return;
  const absl::Status status = RemoveVerdict(options_.output.log_dir, options_.core.job);
  if (!status.ok()) display_.Line(std::string(status.message()));
}

// Gives the event to the core, carries out what it asks for, and goes on with what that led to.
void Daemon::Feed(const AgentEvent& event) {
  if (const auto* said = std::get_if<ServerSaid>(&event);
      said != nullptr && said->message.has_welcome() && spec_.command().empty()) {
    spec_ = said->message.welcome().spec();
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
    for (const uint64_t unit : units_.All()) ToSupervisor(HoldFrame{unit, hold->at.micros()});
    return;
  }
  if (auto* collect = std::get_if<CollectEvidence>(&command)) return Collect(*collect);
  if (auto* answer = std::get_if<StoreAnswer>(&command)) return local_->Answer(answer->reply);
  if (auto* say = std::get_if<Say>(&command)) return display_.Line(say->line);
  if (auto* show = std::get_if<ShowStatus>(&command)) {
    status_ = std::move(show->status);
    return ShowStatusNow();
  }
  exit_ = std::move(std::get<Exit>(command));
}

void Daemon::StartWorkersOf(const StartWorkers& command) {
  if (generation_ == 0) ForgetEarlierRun();
  generation_ = command.generation;
  first_rank_ = command.assign.first_rank();
  const bool in_place = spec_.restart().in_place();
  units_.Begin(generation_, in_place, command.kept);
  for (uint32_t i = 0; i < command.assign.local_world_size(); ++i) {
    if (command.kept.count(i) != 0) continue;
    outputs_.erase(i);
    files_.erase(i);
    pids_.erase(i);
  }
  WorkerStartOptions start;
  start.environment.job = options_.core.job;
  start.environment.generation = command.generation;
  start.environment.assign = command.assign;
  start.environment.spec = spec_;
  start.environment.base = environment_;
  start.environment.socket = local_->socket_path();
  start.environment.token_file = local_->token_path();
  start.environment.env_style = options_.env_style;
  start.environment.gpus_per_worker_own = options_.gpus_per_worker_own;
  start.environment.virtual_local_rank = options_.virtual_local_rank;
  start.output = options_.output;
  start.bind = options_.bind;
  start.scratch = local_->directory();
  DirectoryFailure directory;
  absl::StatusOr<std::vector<StartFrame>> frames = PrepareWorkers(start, &directory);
  if (!frames.ok()) return FailToStart(command, frames.status(), directory);
  hold_.Release();
  local_->BeginGeneration(command.generation, command.assign, in_place, command.kept);
  for (StartFrame& frame : *frames) {
    const bool kept = command.kept.count(frame.local_rank) != 0;
    StartOne(std::move(frame), kept);
  }
  StartWatching();
}

void Daemon::StartOne(StartFrame frame, bool kept) {
  const uint32_t local_rank = frame.local_rank, rank = first_rank_ + local_rank;
  FlushOutput(local_rank);
  const PrefixFields fields = {options_.core.join.host(),
                               spec_.role().empty() ? "default" : spec_.role(), rank, local_rank};
  const std::string prefix = LinePrefix(options_.output.prefix_template, fields);
  outputs_[local_rank] = {LineAssembler(prefix), LineAssembler(prefix), LineAssembler()};
  if (kept) return;
  WorkerFiles& files = files_[local_rank];
  files.logs = {frame.stderr_path, frame.stdout_path};
  if (!frame.forward_stdout) files.silent_logs.push_back(frame.stdout_path);
  if (!frame.forward_stderr) files.silent_logs.push_back(frame.stderr_path);
  files.progress_file = ProgressFilePath(local_->directory(), generation_, static_cast<int>(rank));
  frame.generation = units_.Add(local_rank);
  ToSupervisor(std::move(frame));
}

void Daemon::FailToStart(const StartWorkers& command, const absl::Status& why,
                         const DirectoryFailure& directory) {
  v1::WorkerExit exit;
  if (directory.error != 0) {
    exit.set_exec_errno(directory.error);
    exit.set_exec_step(absl::StrCat("log directory ", directory.path));
  } else {
    exit.set_exec_errno(kInvalidEnvironment);
    exit.set_exec_step("prepare");
  }
  exit.set_last_lines(std::string(why.message()));
  for (uint32_t i = 0; i < command.assign.local_world_size(); ++i) {
    if (command.kept.count(i) == 0) {
      own_events_.push_back(WorkerDied{command.generation, i, exit});
    }
  }
}

void Daemon::StopWorkersOf(const StopWorkers& command) {
  collector_->Cancel();
  // An order that came late, for what a generation left behind that is over.
  if (command.generation != generation_) return;
  local_->EndGeneration(command.kept, command.reason);
  const std::vector<uint64_t> units = units_.Stop(command.kept);
  if (units_.Stopped() || supervisor_ == nullptr) return own_events_.push_back(Gone());
  StopFrame frame;
  frame.grace_ms = static_cast<uint32_t>(
      std::min<int64_t>(absl::ToInt64Milliseconds(command.grace), UINT32_MAX));
  for (const uint64_t unit : units) {
    frame.generation = unit;
    ToSupervisor(frame);
  }
}

void Daemon::ToSupervisor(const Frame& frame) {
  if (supervisor_ == nullptr) return;
  const absl::Status sent = supervisor_->Send(frame);
  if (sent.ok()) return;
  display_.Line(absl::StrCat("cannot give orders to cadre-supervisor: ", sent.message()));
  supervisor_.reset();
  own_events_.push_back(SupervisorLost{});
}

AllGone Daemon::Gone() {
  poll_at_ = MonoTime::Never();
  if (hold_.port() == 0) {
    absl::StatusOr<PortHold> next = PortHold::Acquire("");
    if (next.ok()) {
      hold_ = *std::move(next);
    } else {
      display_.Line(std::string(next.status().message()));
    }
  }
  return AllGone{generation_, hold_.port(), units_.kept()};
}

void Daemon::OnFrame(Frame frame) {
  if (const auto* started = std::get_if<StartedFrame>(&frame)) {
    if (!units_.Has(started->generation)) return;
    pids_[started->local_rank] = started->pid;
    return Feed(WorkerRuns{generation_, started->local_rank, started->pid});
  }
  if (const auto* output = std::get_if<OutputFrame>(&frame)) return OnOutput(*output);
  if (const auto* exited = std::get_if<ExitedFrame>(&frame)) {
    if (!units_.Has(exited->generation)) return;
    FlushOutput(exited->local_rank);
    pids_.erase(exited->local_rank);
    const PageOwner owner = {generation_, static_cast<int>(first_rank_ + exited->local_rank)};
    return Feed(WorkerDied{generation_, exited->local_rank, ToProto(*exited),
                           LastPage(local_->directory(), owner, exited->local_rank)});
  }
  if (const auto* gone = std::get_if<AllGoneFrame>(&frame)) {
    if (!units_.Has(gone->generation)) return;
    units_.Gone(gone->generation);
    if (!units_.Stopped()) return;
    for (const auto& [local_rank, output] : outputs_) FlushOutput(local_rank);
    return Feed(Gone());
  }
}

void Daemon::OnOutput(const OutputFrame& frame) {
  const auto worker = outputs_.find(frame.local_rank);
  if (!units_.Has(frame.generation) || worker == outputs_.end()) return;
  WorkerOutput& output = worker->second;
  if (frame.stream == 3) {
    return OnProgressLines(frame, output.progress.Add(frame.bytes, frame.dropped));
  }
  if (spec_.timeouts().has_silence()) {
    Feed(WorkerWrote{generation_, frame.local_rank, MonoNow()});
  }
  LineAssembler& assembler = frame.stream == 2 ? output.standard_error : output.standard_output;
  const std::string lines = assembler.Add(frame.bytes, frame.dropped);
  if (!lines.empty()) display_.WorkerLines(lines, frame.stream == 2);
}

void Daemon::OnProgressLines(const OutputFrame& frame, const std::string& lines) {
  if (lines.empty()) return;
  for (const absl::string_view line : absl::StrSplit(absl::StripSuffix(lines, "\n"), '\n')) {
    for (const AgentEvent& event : watch_.OnLine(frame.local_rank, line, MonoNow())) Feed(event);
  }
  if (MonoNow() - status_shown_at_ >= kProgressRedraw) ShowStatusNow();
}

void Daemon::PollProgress() {
  const std::vector<AgentEvent> events = watch_.Poll(MonoNow());
  poll_at_ = MonoNow() + kProgressPoll;
  for (const AgentEvent& event : events) Feed(event);
  if (!events.empty()) ShowStatusNow();
}

void Daemon::StartWatching() {
  std::vector<ProgressWatch::Worker> workers;
  for (const auto& [local_rank, files] : files_) {
    workers.push_back(
        {local_rank, first_rank_ + local_rank, files.silent_logs, files.progress_file});
  }
  watch_.Start(local_->directory(), generation_, std::move(workers));
  poll_at_ = MonoNow() + kProgressPoll;
}

void Daemon::Collect(const CollectEvidence& command) {
  EvidenceRequest request;
  request.generation = command.generation;
  request.page_directory = local_->directory();
  for (const auto& [local_rank, pid] : pids_) {
    EvidenceRequest::Worker worker;
    worker.local_rank = local_rank;
    worker.rank = first_rank_ + local_rank;
    worker.pid = pid;
    worker.overdue = std::count(command.overdue.begin(), command.overdue.end(), local_rank) > 0;
    if (!options_.output.log_dir.empty()) {
      worker.file = RankDirectory(options_.output.log_dir, options_.core.job, command.generation,
                                  worker.rank) +
                    "/evidence.txt";
      worker.logs = files_[local_rank].logs;
    }
    request.workers.push_back(std::move(worker));
  }
  collector_->Start(std::move(request));
}

void Daemon::FlushOutput(uint32_t local_rank) {
  const auto worker = outputs_.find(local_rank);
  if (worker == outputs_.end()) return;
  for (const bool to_stderr : {false, true}) {
    const std::string rest = to_stderr ? worker->second.standard_error.Finish()
                                       : worker->second.standard_output.Finish();
    if (!rest.empty()) display_.WorkerLines(rest, to_stderr);
  }
}

void Daemon::ShowStatusNow() {
  display_.Status(status_, watch_.Newest());
  status_shown_at_ = MonoNow();
}

}  // namespace

absl::StatusOr<Exit> RunAgent(const DaemonOptions& options,
                              std::unique_ptr<SupervisorClient> supervisor, ServerLink& link,
                              Display& display) {
  return Daemon(options, std::move(supervisor), link, display).Run();
}

}  // namespace cadre
