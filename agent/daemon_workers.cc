// What the daemon does for its workers: starting, stopping and taking them over, and what they say.
#include <string.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/daemon_impl.h"
#include "agent/evidence/exit_report.h"
#include "agent/run_files.h"
#include "base/clock.h"
#include "base/log_paths.h"

namespace cadre {
namespace {

// Between two redraws that only progress asks for.
constexpr absl::Duration kProgressRedraw = absl::Milliseconds(100);
// Between two looks at pages and files of progress.
constexpr absl::Duration kProgressPoll = absl::Milliseconds(250);

}  // namespace

void Daemon::ForgetEarlierRun() {
  if (options_.output.log_dir.empty()) return;
  const std::string run = RunDirectoryHere();
  UnlinkOtherRuns(run);
  // One that goes on under another launcher has its own from before.
  for (const std::string& directory :
       {RunDirectory(options_.output.log_dir, options_.core.job, ""), run}) {
    const absl::Status status = RemoveVerdict(directory);
    if (!status.ok()) display_.Line(std::string(status.message()));
  }
}

std::string Daemon::RunDirectoryHere() const {
  return RunDirectory(options_.output.log_dir, options_.core.job, run_);
}

void Daemon::StartWorkersOf(const StartWorkers& command) {
  run_ = command.assign.run();
  if (generation_ == 0) ForgetEarlierRun();
  generation_ = command.generation.number;
  first_rank_ = command.assign.first_rank();
  const bool in_place = spec_.restart().in_place();
  groups_.Begin(command.kept);
  for (uint32_t i = 0; i < command.assign.local_world_size(); ++i) {
    if (command.kept.count(i) != 0) continue;
    outputs_.erase(i);
    files_.erase(i);
    pids_.erase(i);
  }
  DirectoryFailure directory;
  absl::StatusOr<std::vector<supervisor::StartFrame>> frames =
      FramesFor(command.assign, &directory);
  if (!frames.ok()) return FailToStart(command, frames.status(), directory);
  hold_.Release();
  local_->BeginGeneration(generation_, command.assign, in_place, command.kept);
  if (directory.error == 0) {
    LinkGeneration();
  } else {
    display_.Line(absl::StrCat("cannot make directories in ", directory.path, ": ",
                               strerror(directory.error),
                               "; the workers run, and their output is not kept"));
  }
  standby_like_ = StandbyFor(*frames);
  KeepWorkers(command.generation, command.assign, groups_.next());
  for (uint32_t local_rank = 0; local_rank < frames->size(); ++local_rank) {
    supervisor::StartFrame& frame = (*frames)[local_rank];
    const bool runs = command.kept.count(local_rank) != 0;
    Follow(local_rank, frame, runs);
    if (runs) continue;
    frame.group = groups_.Take();
    groups_.Add(frame.group, local_rank);
    ToSupervisor(std::move(frame));
  }
  for (const uint32_t local_rank : command.kept) LinkLogs(local_rank);
  StartWatching();
}

// The supervisor's frames about each worker follow.
void Daemon::TakeOver() {
  const supervisor::AdoptedFrame& inventory = options_.adoption->inventory;
  const v1::Assign& assign = options_.adoption->run.assign();
  generation_ = options_.adoption->run.generation();
  run_ = assign.run();
  first_rank_ = assign.first_rank();
  local_->BeginGeneration(generation_, assign);
  const uint32_t workers = assign.local_world_size();
  const uint64_t first_group = options_.adoption->run.first_group();
  KeepWorkers(GenerationOf(options_.adoption->run), assign, first_group);
  for (uint32_t i = 0; i < workers; ++i) groups_.Add(first_group + i, i);
  const absl::StatusOr<std::vector<supervisor::StartFrame>> frames = FramesFor(assign, nullptr);
  if (frames.ok()) {
    for (uint32_t i = 0; i < workers; ++i) Follow(i, (*frames)[i], /*runs=*/false);
  } else {
    display_.Line(absl::StrCat("output is not shown: ", frames.status().message()));
  }
  StartWatching();
  display_.Line(absl::StrCat("took over ", workers, workers == 1 ? " worker" : " workers",
                             " of generation ", generation_, ", which had no launcher for ",
                             absl::FormatDuration(absl::Milliseconds(inventory.alone_ms))));
  ReadSupervisor();
}

absl::StatusOr<std::vector<supervisor::StartFrame>> Daemon::FramesFor(const v1::Assign& assign,
                                                                      DirectoryFailure* failure) {
  WorkerStartOptions start;
  start.environment.job = options_.core.job;
  start.environment.generation = generation_;
  start.environment.assign = assign;
  start.environment.spec = spec_;
  start.environment.base = environment_;
  start.environment.socket = local_->socket_path();
  start.environment.token_file = local_->token_path();
  start.environment.workers = options_.workers;
  start.output = options_.output;
  start.scratch = local_->directory();
  return PrepareWorkers(start, failure);
}

// What another process needs comes before the workers do.
void Daemon::KeepWorkers(const GenerationId& generation, const v1::Assign& assign,
                         uint64_t first_group) {
  if (options_.adopt_timeout == absl::ZeroDuration()) return;
  v1::AgentRun run = options_.run;
  run.set_incarnation(incarnation_);
  SetGeneration(&run, generation);
  run.set_first_group(first_group);
  *run.mutable_assign() = assign;
  const absl::StatusOr<supervisor::KeepFrame> keep =
      OfferForAdoption(local_->directory(), local_->token(), options_.adopt_timeout, run);
  if (keep.ok()) return ToSupervisor(*keep);
  display_.Line(absl::StrCat(keep.status().message(), "; workers end with this launcher"));
  ToSupervisor(supervisor::KeepFrame());
}

WorkerFiles FilesOf(const supervisor::StartFrame& frame, std::string progress_file) {
  WorkerFiles files;
  files.logs = {frame.stderr_path, frame.stdout_path};
  if (!frame.forward_stdout) files.silent_logs.push_back(frame.stdout_path);
  if (!frame.forward_stderr) files.silent_logs.push_back(frame.stderr_path);
  files.progress_file = std::move(progress_file);
  files.directory = std::filesystem::path(frame.error_file).parent_path().string();
  return files;
}

void Daemon::LinkGeneration() {
  if (options_.output.log_dir.empty()) return;
  const absl::Status linked = LinkToRun(RunDirectoryHere(), GenerationSubdirectory(generation_));
  if (linked.ok()) return;
  display_.Line(absl::StrCat(linked.message(), "; output is in ", RunDirectoryHere()));
}

void Daemon::LinkLogs(uint32_t local_rank) {
  if (options_.output.log_dir.empty()) return;
  // Without it the files are still where they were.
  LinkDirectory(RankDirectory(RunDirectoryHere(), generation_, first_rank_ + local_rank),
                files_[local_rank].directory)
      .IgnoreError();
}

void Daemon::Follow(uint32_t local_rank, const supervisor::StartFrame& frame, bool runs) {
  const uint32_t rank = first_rank_ + local_rank;
  FlushOutput(local_rank);
  const PrefixFields fields = {options_.core.join.host(),
                               spec_.role().empty() ? "default" : spec_.role(), rank, local_rank};
  const std::string prefix = LinePrefix(options_.output.prefix_template, fields);
  outputs_[local_rank] = {LineAssembler(prefix), LineAssembler(prefix), LineAssembler()};
  if (runs) return;
  files_[local_rank] =
      FilesOf(frame, ProgressFilePath(local_->directory(), generation_, static_cast<int>(rank)));
}

void Daemon::AskWorkers(const AskForCheckpoint& ask) {
  display_.Line("more nodes wait: workers are asked to save and begin the next generation");
  const absl::Status status =
      WriteFile(CheckpointFilePath(local_->directory(), ask.generation), "");
  if (!status.ok()) display_.Line(std::string(status.message()));
  if (ask.signal == 0) return;
  for (const auto& [group, local_rank] : groups_.all()) {
    ToSupervisor(supervisor::SignalFrame{group, ask.signal});
  }
}

void Daemon::FailToStart(const StartWorkers& command, const absl::Status& why,
                         const DirectoryFailure& directory) {
  const v1::WorkerExit exit = NotStarted(why, directory);
  for (uint32_t i = 0; i < command.assign.local_world_size(); ++i) {
    if (command.kept.count(i) == 0) {
      own_events_.push_back(WorkerDied{command.generation.number, i, exit});
    }
  }
}

void Daemon::StopWorkersOf(const StopWorkers& command) {
  collector_->Cancel();
  // An order that came late, for what a generation left behind that is over.
  if (command.generation != generation_) return;
  standbys_at_ = MonoTime::Never();
  local_->EndGeneration(command.kept, command.reason);
  const std::vector<uint64_t> groups = groups_.Stop(command.kept);
  if (groups_.Stopped() || supervisor_ == nullptr) return own_events_.push_back(Gone());
  supervisor::StopFrame frame;
  frame.grace_ms = static_cast<uint32_t>(
      std::min<int64_t>(absl::ToInt64Milliseconds(command.grace), UINT32_MAX));
  for (const uint64_t group : groups) {
    frame.group = group;
    ToSupervisor(frame);
  }
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
  return AllGone{generation_, hold_.port(), groups_.kept()};
}

void Daemon::OnOutput(uint32_t local_rank, const supervisor::OutputFrame& frame) {
  const auto worker = outputs_.find(local_rank);
  if (worker == outputs_.end()) return;
  WorkerOutput& output = worker->second;
  if (frame.stream == 3) {
    return OnProgressLines(local_rank, output.progress.Add(frame.bytes, frame.dropped));
  }
  if (spec_.timeouts().has_silence()) {
    Feed(WorkerWrote{generation_, local_rank, MonoNow()});
  }
  LineAssembler& assembler = frame.stream == 2 ? output.standard_error : output.standard_output;
  const std::string lines = assembler.Add(frame.bytes, frame.dropped);
  ShowLines(lines, assembler, frame.stream == 2);
}

void Daemon::ShowLines(const std::string& lines, const LineAssembler& assembler, bool to_stderr) {
  if (lines.empty()) return;
  display_.WorkerLines(lines, to_stderr);
  (to_stderr ? filtered_stderr_ : filtered_stdout_).Add(lines, assembler.prefix().size());
}

void Daemon::OpenFiltered() {
  if (options_.output.log_dir.empty()) return;
  const std::string directory =
      absl::StrCat(RunDirectoryHere(), "/", GenerationSubdirectory(generation_));
  for (const bool of_stderr : {false, true}) {
    FilteredLines& lines = of_stderr ? filtered_stderr_ : filtered_stdout_;
    const std::string path =
        absl::StrCat(directory, of_stderr ? "/filtered_stderr.log" : "/filtered_stdout.log");
    if (lines.wanted() && !lines.Open(path)) display_.Line(absl::StrCat("cannot write ", path));
  }
}

void Daemon::OnProgressLines(uint32_t local_rank, const std::string& lines) {
  if (lines.empty()) return;
  for (const absl::string_view line : absl::StrSplit(absl::StripSuffix(lines, "\n"), '\n')) {
    for (const AgentEvent& event : watch_.OnLine(local_rank, line, MonoNow())) Feed(event);
  }
  if (MonoNow() - status_shown_at_ >= kProgressRedraw) ShowStatusNow();
}

void Daemon::PollProgress() {
  StartStandbys();
  const std::string stopped = supervisor_ == nullptr ? "" : supervisor_->ContinueIfStopped();
  if (!stopped.empty()) display_.Line(stopped);
  const std::vector<AgentEvent> events = watch_.Poll(MonoNow());
  poll_at_ = MonoNow() + kProgressPoll;
  for (const AgentEvent& event : events) Feed(event);
  if (!events.empty()) ShowStatusNow();
}

void Daemon::StartWatching() {
  OpenFiltered();
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
      worker.file =
          RankDirectory(RunDirectoryHere(), command.generation, worker.rank) + "/evidence.txt";
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
    LineAssembler& assembler =
        to_stderr ? worker->second.standard_error : worker->second.standard_output;
    ShowLines(assembler.Finish(), assembler, to_stderr);
  }
}

void Daemon::ShowStatusNow() {
  display_.Status(status_, watch_.Newest());
  status_shown_at_ = MonoNow();
}

}  // namespace cadre
