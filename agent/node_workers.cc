#include "agent/node_workers.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/adoption.h"
#include "agent/display.h"
#include "agent/run_files.h"
#include "agent/workers/exit_report.h"
#include "agent/workers/ports.h"
#include "agent/workers/python/warm_workers.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/own_files.h"
#include "base/progress_snapshot.h"
#include "base/scoped_fd.h"

extern char** environ;

namespace cadre::agent {
namespace {

// The loop also renews the node's lease, so it waits no longer for a log directory.
constexpr absl::Duration kFilesLimit = absl::Seconds(1);
constexpr absl::Duration kPoll = absl::Milliseconds(250);
constexpr absl::Duration kLeftoversPoll = absl::Seconds(1);

void SetDirectory(const LocalService& local, WorkerStartOptions* start) {
  start->environment.socket = local.socket_path();
  start->environment.token_file = local.token_path();
  start->scratch = local.directory();
}

WorkerStartOptions StartOptions(const DaemonOptions& options, const LocalService& local) {
  WorkerStartOptions start;
  start.environment.job = options.core.job;
  start.environment.spec = options.core.join.spec();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    start.environment.base.emplace_back(*entry);
  }
  start.environment.workers = options.workers;
  start.output = options.output;
  start.host = options.core.join.host();
  start.began_unix_ms = absl::ToUnixMillis(absl::Now());
  SetDirectory(local, &start);
  return start;
}

// Appends to a file to which a worker writes. An error is ignored: the line is for people alone.
void AppendTo(const std::string& path, const std::string& line) {
  const absl::StatusOr<ScopedFd> file = OpenFileToWrite(path, O_WRONLY | O_APPEND);
  if (!file.ok()) return;
  [[maybe_unused]] const ssize_t n = write(file->get(), line.data(), line.size());
}

// Makes the log directories of one generation; the limit applies to all of them together.
MakeLogDirectory MakingWithinLimit(FileThread& files) {
  return [&files, until = MonoTime::Never()](const std::string& log_dir, const std::string& below,
                                             int* error) mutable {
    struct Made {
      absl::Status status;
      int error = 0;
    };
    // The limit counts from the first directory.
    if (until == MonoTime::Never()) until = MonoNow() + kFilesLimit;
    const absl::Duration left = std::max(until - MonoNow(), absl::ZeroDuration());
    const std::optional<Made> made = files.ResultWithin(left, [log_dir, below] {
      Made result;
      result.status = MakeRunDirectory(log_dir, below, &result.error);
      return result;
    });
    *error = made.has_value() ? made->error : ETIMEDOUT;
    return made.has_value()
               ? made->status
               : absl::DeadlineExceededError(absl::StrCat(log_dir, " does not answer"));
  };
}

}  // namespace

NodeWorkers::NodeWorkers(const DaemonOptions& options,
                         std::unique_ptr<supervisor::Client> supervisor, PortReservation hold,
                         Uses uses)
    : options_(options),
      uses_(std::move(uses)),
      supervisor_(std::move(supervisor), uses_.display),
      hold_(std::move(hold)),
      store_(options.adopt_timeout, uses_.display),
      start_(StartOptions(options, uses_.local)),
      outputs_(options.output, uses_.display),
      follower_(uses_.local.directory(), files_, uses_.report) {
  Send(supervisor::DirectoryFrame{uses_.local.directory()});
}

void NodeWorkers::Begin(const BeginJob& command) {
  v1::JobSpec& spec = start_.environment.spec;
  spec = command.spec;
  if (options_.own_spec.has_value()) *spec.mutable_env() = options_.own_spec->env();
  if (options_.own_spec.has_value() && spec.has_batch()) {
    *spec.mutable_command() = options_.own_spec->command();
    // A script has no ranks that would meet in a store.
    spec.set_agent_store(false);
  }
  for (const UnfitWorkers& unfit : options_.unfit) {
    const std::string line = StopUnfit(unfit);
    if (!line.empty()) uses_.display.Line(line);
  }
}

void NodeWorkers::EnterGeneration(uint64_t generation, const v1::Assign& assign) {
  start_.environment.generation = generation;
  start_.environment.assign = assign;
  uses_.logs.SetGeneration(assign.run(), generation);
}

void NodeWorkers::RestoreDirectory() {
  const std::string before = uses_.local.directory();
  const absl::StatusOr<bool> restored = uses_.local.RestoreDirectory();
  if (!restored.ok()) return uses_.display.Line(std::string(restored.status().message()));
  if (!*restored) return;
  const std::string& now = uses_.local.directory();
  uses_.display.Line(absl::StrCat("files of this agent in ", before,
                                  " were removed; the agent has made them again",
                                  now == before ? "" : absl::StrCat(" in ", now)));
  SetDirectory(uses_.local, &start_);
  follower_.UseDirectory(now);
  Send(supervisor::DirectoryFrame{now});
}

void NodeWorkers::Start(const StartWorkers& command) {
  RestoreDirectory();
  const bool first = generation() == 0;
  EnterGeneration(command.generation.number, command.assign);
  if (first) {
    const auto forget = [logs = uses_.logs] { return logs.UnlinkEarlierRuns(); };
    // If that does not answer, LinkLogs reports it.
    for (const std::string& line :
         files_.ResultWithin(kFilesLimit, forget).value_or(std::vector<std::string>())) {
      uses_.display.Line(line);
    }
  }
  groups_.Begin(command.kept);
  outputs_.KeepOnly(command.kept);
  for (auto it = workers_.begin(); it != workers_.end();) {
    it = command.kept.count(it->first) != 0 ? std::next(it) : workers_.erase(it);
  }
  if (!BeginStore(command)) return;
  DirectoryFailure directory;
  absl::StatusOr<std::vector<supervisor::StartFrame>> frames =
      PrepareWorkers(start_, &directory, MakingWithinLimit(files_));
  if (!frames.ok()) return FailToStart(command, NotStarted(frames.status(), directory));
  CADRE_CHECK(frames->size() == assign().local_world_size(), frames->size(), " frames for ",
              assign().local_world_size(), " workers");
  hold_.Release();
  uses_.local.BeginGeneration(generation(), assign(), spec().restart().in_place(), command.kept);
  LinkLogs(directory);
  start_.had_logs = start_.had_logs || directory.error == 0;
  // The files that the supervisor writes there for Python live no longer than this agent, and
  // writing them in memory takes a tenth of the time.
  if (!spec().has_batch()) {
    AllowWarmStart(spec().restart(), CheckpointMemoryPath(uses_.local.directory()), *frames);
  }
  standbys_.Begin(
      StandbyFor(*frames),
      StandbysWanted(spec().restart(), options_.workers, options_.adopt_timeout, frames->size()),
      assign().first_rank());
  OfferForAdoption(command.generation, groups_.next());
  for (uint32_t local_rank = 0; local_rank < frames->size(); ++local_rank) {
    if (command.kept.count(local_rank) != 0) {
      ContinueKept(local_rank);
    } else {
      Start(local_rank, std::move((*frames)[local_rank]));
    }
  }
  warm_notes_.BeginGeneration();
  if (warm_notes_.imports().template_modules() != 0) {
    uses_.emit(ProgramImported{generation(), warm_notes_.imports()});
  }
  BeginFollowing();
}

bool NodeWorkers::BeginStore(const StartWorkers& command) {
  const bool chosen = assign().node_rank() == 0 && assign().master_port() != hold_.port();
  // Kept workers may be listening at the port.
  if (chosen && command.kept.empty()) {
    store_.End();
    if (MasterPortIsTaken(assign())) {
      FailForPort(command);
      return false;
    }
  }
  store_.Begin(&start_.environment);
  if (!chosen || !store_.PortIsTaken()) return true;
  FailForPort(command);
  return false;
}

void NodeWorkers::FailForPort(const StartWorkers& command) {
  const uint32_t port = assign().master_port();
  FailToStart(command,
              PortIsTaken(port, WhoListensAt(assign().master_addr(), static_cast<uint16_t>(port))));
}

void NodeWorkers::Start(uint32_t local_rank, supervisor::StartFrame frame) {
  Follow(local_rank, &frame);
  frame.group = groups_.Take();
  groups_.Add(frame.group, local_rank);
  Send(frame);
}

void NodeWorkers::ContinueKept(uint32_t local_rank) {
  NodeWorker& worker = workers_.at(local_rank);
  worker.rank = RankOf(local_rank);
  outputs_.Begin(PrefixOf(local_rank));
  files_.Post([logs = uses_.logs, rank = worker.rank, directory = worker.files.directory] {
    logs.LinkRank(rank, directory);
  });
}

void NodeWorkers::Follow(uint32_t local_rank, const supervisor::StartFrame* frame) {
  NodeWorker worker;
  worker.rank = RankOf(local_rank);
  if (frame != nullptr) {
    worker.files = FilesOf(*frame, ProgressFilePath(uses_.local.directory(), generation(),
                                                    static_cast<int>(worker.rank)));
    outputs_.Begin(PrefixOf(local_rank));
  }
  workers_[local_rank] = std::move(worker);
}

PrefixFields NodeWorkers::PrefixOf(uint32_t local_rank) const {
  return {options_.core.join.host(), spec().role().empty() ? "default" : spec().role(),
          RankOf(local_rank), local_rank};
}

void NodeWorkers::AdoptWorkers() {
  CADRE_CHECK(options_.adoption.has_value(), "there is nothing to take over");
  const v1::AgentRun& run = options_.adoption->run;
  EnterGeneration(run.generation(), run.assign());
  uses_.local.BeginGeneration(generation(), assign());
  OfferForAdoption(GenerationOf(run), run.first_group());
  const absl::StatusOr<std::vector<supervisor::StartFrame>> frames =
      PrepareWorkers(start_, nullptr, MakingWithinLimit(files_));
  if (!frames.ok()) {
    uses_.display.Line(absl::StrCat("the output of the workers that were taken over is not shown: ",
                                    frames.status().message()));
  }
  // The earlier agent had decided about logs: the workers have them, or run without any.
  start_.had_logs = true;
  const uint32_t workers = assign().local_world_size();
  for (uint32_t local_rank = 0; local_rank < workers; ++local_rank) {
    groups_.Add(run.first_group() + local_rank, local_rank);
    Follow(local_rank, frames.ok() ? &(*frames)[local_rank] : nullptr);
  }
  BeginFollowing();
  const absl::Duration alone = absl::Milliseconds(options_.adoption->inventory.alone_ms);
  uses_.display.Line(absl::StrCat("took over ", workers, workers == 1 ? " worker" : " workers",
                                  " of generation ", generation(), ", which had no launcher for ",
                                  absl::FormatDuration(alone)));
}

void NodeWorkers::FailToStart(const StartWorkers& command, const v1::WorkerExit& exit) {
  for (uint32_t i = 0; i < command.assign.local_world_size(); ++i) {
    if (command.kept.count(i) == 0) uses_.emit(WorkerDied{generation(), i, exit});
  }
}

void NodeWorkers::LinkLogs(const DirectoryFailure& directory) {
  if (directory.error != 0) {
    return uses_.display.Line(absl::StrCat("cannot make directories in ", directory.path, ": ",
                                           directory.error == ETIMEDOUT
                                               ? "its file system does not answer"
                                               : strerror(directory.error),
                                           "; the workers run, and their output is not kept"));
  }
  const std::optional<absl::Status> linked =
      files_.ResultWithin(kFilesLimit, [logs = uses_.logs] { return logs.LinkGeneration(); });
  if (!linked.has_value() || linked->ok()) return;
  uses_.display.Line(absl::StrCat(linked->message(), "; output is in ", uses_.logs.RunPath()));
}

void NodeWorkers::OfferForAdoption(const GenerationId& generation, uint64_t first_group) {
  if (options_.adopt_timeout == absl::ZeroDuration()) return;
  v1::AgentRun run = options_.run;
  run.set_incarnation(options_.incarnation());
  SetGeneration(&run, generation);
  run.set_first_group(first_group);
  if (supervisor_.exists()) run.set_frames_version(supervisor_.frames_version());
  *run.mutable_assign() = assign();
  const absl::StatusOr<supervisor::KeepFrame> keep = agent::OfferForAdoption(
      uses_.local.directory(), uses_.local.token(), options_.adopt_timeout, run);
  if (keep.ok()) return Send(*keep);
  uses_.display.Line(absl::StrCat(keep.status().message(), "; workers end with this launcher"));
  Send(supervisor::KeepFrame());
}

void NodeWorkers::BeginFollowing() {
  outputs_.OpenFiltered(uses_.logs.GenerationPath());
  follower_.Begin(generation(), workers_, spec().timeouts().has_silence());
  poll_at_ = MonoNow() + kPoll;
}

void NodeWorkers::Stop(const StopWorkers& command) {
  follower_.CancelCollecting();
  // A late order, for processes left by a generation that is over.
  if (command.generation != generation()) return;
  standbys_.End();
  uses_.local.EndGeneration(command.kept, command.reason);
  const std::vector<uint64_t> groups = groups_.Stop(command.kept);
  if (groups_.Stopped() || !supervisor_.exists()) return EmitGone();
  if (!lost_supervisor_.empty()) return;  // they have been killed already
  const int64_t grace_ms = absl::ToInt64Milliseconds(command.grace);
  supervisor::StopFrame frame;
  frame.grace_ms = static_cast<uint32_t>(std::min<int64_t>(grace_ms, UINT32_MAX));
  for (const uint64_t group : groups) {
    frame.group = group;
    Send(frame);
  }
  store_.StopWaits();
}

void NodeWorkers::HoldUntil(MonoTime at) {
  for (const auto& [group, local_rank] : groups_.all()) {
    Send(supervisor::HoldFrame{group, at.micros()});
  }
}

void NodeWorkers::RequestCheckpoint(const AskForCheckpoint& command) {
  uses_.display.Line(
      "more nodes wait to join: the workers are asked to save a checkpoint and begin the next "
      "generation");
  const absl::Status status =
      WriteFile(CheckpointFilePath(uses_.local.directory(), command.generation), "");
  if (!status.ok()) uses_.display.Line(std::string(status.message()));
  if (command.signal != 0) SignalAll(command.signal);
}

void NodeWorkers::Signal(const SignalWorkers& command) {
  if (command.generation != generation()) return;
  for (const auto& [group, local_rank] : groups_.all()) {
    if (command.local_ranks.count(local_rank) == 0) continue;
    // A script handles the signal for what it has started, as with Slurm: its programs would die of
    // a signal that they do not expect.
    Send(supervisor::SignalFrame{group, command.signal, /*process_only=*/spec().has_batch()});
  }
}

void NodeWorkers::SignalAll(int signal) {
  for (const auto& [group, local_rank] : groups_.all()) {
    Send(supervisor::SignalFrame{group, signal});
  }
}

void NodeWorkers::NoteEnd(const NoteEndOfScript& command) {
  const auto script = workers_.find(0);
  if (command.generation != generation() || script == workers_.end()) return;
  const std::string path = script->second.files.standard_error;
  if (path.empty()) return;
  const auto id = spec().env().find("SLURM_JOB_ID");
  const std::string line =
      EndOfScriptLine(command, id == spec().env().end() ? start_.environment.job : id->second,
                      options_.core.join.node(),
                      absl::FormatTime("%Y-%m-%dT%H:%M:%S", absl::Now(), absl::LocalTimeZone()));
  files_.Post([path, line] { AppendTo(path, line); });
}

void NodeWorkers::ReadOutput(bool reads) {
  reads_output_ = reads;
  Send(supervisor::ReadingFrame{reads});
}

void NodeWorkers::ReportAllAsWriting(MonoTime now) {
  for (const auto& [local_rank, worker] : workers_) {
    if (worker.pid != 0) uses_.emit(WorkerWrote{generation(), local_rank, now});
  }
}

void NodeWorkers::Collect(const CollectEvidence& command) {
  follower_.Collect(command, workers_, uses_.logs);
}

void NodeWorkers::Collect(const CollectStacks& command) {
  follower_.CollectStacks(command.ask, workers_);
}

void NodeWorkers::Poll(MonoTime now) {
  if (now < poll_at_) return;
  // The search for leftovers scans all processes of the machine, so it is done less often.
  poll_at_ = now + (lost_supervisor_.empty() ? kPoll : kLeftoversPoll);
  if (!lost_supervisor_.empty()) {
    if (supervisor_.KillLeftovers().empty()) OnLeftoversGone();
    return;
  }
  StartStandbys(now);
  if (!reads_output_ && spec().timeouts().has_silence()) ReportAllAsWriting(now);
  store_.Poll();
  supervisor_.ContinueIfStopped();
  if (std::optional<v1::NodeUsage> usage = usage_.Poll(now)) {
    uses_.emit(UsageMeasured{*std::move(usage)});
  }
  std::vector<AgentEvent> events = follower_.Poll(now);
  if (events.empty()) return uses_.status.RedrawIfOld(now);
  EmitAll(std::move(events));
  uses_.status.Redraw(now);
}

void NodeWorkers::StartStandbys(MonoTime now) {
  if (!uses_.local.WouldStandBy()) return;
  const auto take_group = [this] { return groups_.Take(); };
  for (const supervisor::StartFrame& frame :
       standbys_.Start(now, uses_.local.directory(), take_group)) {
    Send(frame);
  }
}

void NodeWorkers::OnSupervisorGone(const std::string& how) {
  if (!supervisor_.Replace(how)) return uses_.emit(SupervisorLost{supervisor_.why_lost()});
  Send(supervisor::DirectoryFrame{uses_.local.directory()});
  if (!reads_output_) Send(supervisor::ReadingFrame{false});
  standbys_.Clear();
  std::map<uint32_t, v1::WorkerRemains> left;
  for (const supervisor::RemainsFrame& remains : supervisor_.KillLeftovers()) {
    const uint32_t local_rank = groups_.LocalRank(remains.group).value_or(0);
    left[local_rank].MergeFrom(UnkillableProcessesOf(remains, local_rank));
  }
  lost_supervisor_ = how;
  for (const auto& [local_rank, worker] : workers_) {
    if (left.count(local_rank) == 0) EmitKilled(local_rank);
  }
  // If no worker runs, leftovers such as standby processes block nothing.
  if (left.empty() || groups_.all().empty()) return OnLeftoversGone();
  poll_at_ = MonoNow() + kLeftoversPoll;
  for (const auto& [local_rank, remains] : left) {
    uses_.emit(WorkerUnkillable{generation(), remains});
  }
}

void NodeWorkers::OnLeftoversGone() {
  groups_.AllGone();
  for (const auto& [local_rank, worker] : workers_) EmitKilled(local_rank);
  lost_supervisor_.clear();
  if (groups_.Stopped()) EmitGone();
}

// Reports the worker as killed; the core ignores it if it had ended before.
void NodeWorkers::EmitKilled(uint32_t local_rank) {
  outputs_.Flush(local_rank);
  v1::WorkerExit exit;
  exit.set_signal(SIGKILL);
  exit.set_ended_with(lost_supervisor_);
  exit.set_pid(std::exchange(workers_.at(local_rank).pid, 0));
  uses_.emit(WorkerDied{generation(), local_rank, std::move(exit)});
}

void NodeWorkers::EmitAll(std::vector<AgentEvent> events) {
  for (AgentEvent& event : events) uses_.emit(std::move(event));
}

void NodeWorkers::EmitGone() {
  poll_at_ = MonoTime::Never();
  store_.End();
  if (hold_.port() == 0) {
    absl::StatusOr<PortReservation> next = PortReservation::Acquire("");
    if (next.ok()) {
      hold_ = *std::move(next);
    } else {
      uses_.display.Line(std::string(next.status().message()));
    }
  }
  uses_.emit(AllGone{generation(), hold_.port(), groups_.kept()});
}

void NodeWorkers::Send(const supervisor::Frame& frame) {
  if (!supervisor_.Send(frame)) uses_.emit(SupervisorLost{supervisor_.why_lost()});
}

// Frames of the supervisor about its groups, each of which is a worker of this node.

void NodeWorkers::OnFrame(const supervisor::Frame& frame) {
  if (const auto* started = std::get_if<supervisor::StartedFrame>(&frame)) {
    OnStarted(*started);
  } else if (const auto* output = std::get_if<supervisor::OutputFrame>(&frame)) {
    OnOutput(*output);
  } else if (const auto* exited = std::get_if<supervisor::ExitedFrame>(&frame)) {
    OnExited(*exited);
  } else if (const auto* remains = std::get_if<supervisor::RemainsFrame>(&frame)) {
    OnUnkillable(*remains);
  } else if (const auto* gone = std::get_if<supervisor::AllGoneFrame>(&frame)) {
    OnAllGone(*gone);
  } else if (const auto* warm = std::get_if<supervisor::TemplateFrame>(&frame)) {
    for (const std::string& line : warm_notes_.OnTemplate(*warm)) uses_.display.Line(line);
    uses_.emit(ProgramImported{generation(), warm_notes_.imports()});
  } else if (const auto* imported = std::get_if<supervisor::ImportedFrame>(&frame)) {
    if (!groups_.LocalRank(imported->group).has_value()) return;
    warm_notes_.OnImported(*imported);
    uses_.emit(ProgramImported{generation(), warm_notes_.imports()});
  }
}

void NodeWorkers::OnStarted(const supervisor::StartedFrame& started) {
  const std::optional<uint32_t> local_rank = groups_.LocalRank(started.group);
  if (!local_rank.has_value()) return;
  NodeWorker& worker = workers_.at(*local_rank);
  worker.pid = started.pid;
  if (const std::optional<Standby> standby = standbys_.Remove(started.was)) {
    // A former standby touches the progress file that it was started with; the link makes that file
    // visible at the worker's path.
    std::error_code ignored;
    std::filesystem::create_symlink(standby->progress_file, worker.files.progress_file, ignored);
  }
  const std::string note =
      warm_notes_.OnStarted(started, generation(), assign().restart_count() > 0);
  if (!note.empty()) uses_.display.Line(note);
  uses_.emit(WorkerRuns{generation(), *local_rank, started.pid, started.warm, started.why_plain});
}

void NodeWorkers::OnOutput(const supervisor::OutputFrame& output) {
  const std::optional<uint32_t> local_rank = groups_.LocalRank(output.group);
  if (!local_rank.has_value()) return;
  const MonoTime now = MonoNow();
  if (output.stream != kProgressStream && spec().timeouts().has_silence()) {
    uses_.emit(WorkerWrote{generation(), *local_rank, now});
  }
  const std::string progress = outputs_.Add(*local_rank, output);
  if (!progress.empty()) {
    EmitAll(follower_.OnLines(*local_rank, progress, now));
  }
  // The current state of progress bars is redrawn too.
  if (!progress.empty() || uses_.display.DrawsCurrentRows(true)) uses_.status.RedrawIfDue(now);
}

void NodeWorkers::OnExited(const supervisor::ExitedFrame& exited) {
  if (const std::optional<Standby> standby = standbys_.Remove(exited.group)) {
    uses_.display.Line(StandbyEnded(*standby, exited, uses_.logs.kept()));
    return Send(supervisor::StopFrame{exited.group, 0});  // processes that it left are killed too
  }
  const std::optional<uint32_t> local_rank = groups_.LocalRank(exited.group);
  if (!local_rank.has_value()) return;
  outputs_.Flush(*local_rank);
  NodeWorker& worker = workers_.at(*local_rank);
  v1::WorkerExit exit = ExitOf(exited);
  std::optional<v1::RankEvidence> place = follower_.LastPlaceOf(*local_rank, worker, exit);
  worker.pid = 0;
  uses_.emit(WorkerDied{generation(), *local_rank, std::move(exit), std::move(place)});
}

void NodeWorkers::OnUnkillable(const supervisor::RemainsFrame& remains) {
  const std::optional<uint32_t> local_rank = groups_.LocalRank(remains.group);
  if (!local_rank.has_value()) return;
  uses_.emit(WorkerUnkillable{generation(), UnkillableProcessesOf(remains, *local_rank)});
}

void NodeWorkers::OnAllGone(const supervisor::AllGoneFrame& gone) {
  if (!groups_.LocalRank(gone.group).has_value()) return;
  groups_.Gone(gone.group);
  if (!groups_.Stopped()) return;
  outputs_.FlushAll();
  EmitGone();
}

}  // namespace cadre::agent
