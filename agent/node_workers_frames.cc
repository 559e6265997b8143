// What the supervisor says of its groups, which are this node's workers.
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <variant>

#include "agent/exit_report.h"
#include "agent/node_workers.h"
#include "base/clock.h"

namespace cadre::agent {

void NodeWorkers::OnFrame(const supervisor::Frame& frame) {
  if (const auto* started = std::get_if<supervisor::StartedFrame>(&frame)) {
    OnStarted(*started);
  } else if (const auto* output = std::get_if<supervisor::OutputFrame>(&frame)) {
    OnOutput(*output);
  } else if (const auto* exited = std::get_if<supervisor::ExitedFrame>(&frame)) {
    OnExited(*exited);
  } else if (const auto* remains = std::get_if<supervisor::RemainsFrame>(&frame)) {
    OnRemains(*remains);
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
  if (const std::optional<Standby> standby = standbys_.Take(started.was)) {
    // It touches the file that it was started with, and is seen here.
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
  // Also for the current state of progress bars.
  if (!progress.empty() || uses_.display.DrawsCurrentRows(true)) uses_.status.RedrawIfDue(now);
}

void NodeWorkers::OnExited(const supervisor::ExitedFrame& exited) {
  if (const std::optional<Standby> standby = standbys_.Take(exited.group)) {
    uses_.display.Line(StandbyEnded(*standby, exited, uses_.logs.kept()));
    return Send(supervisor::StopFrame{exited.group, 0});  // what it left behind goes too
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

void NodeWorkers::OnRemains(const supervisor::RemainsFrame& remains) {
  const std::optional<uint32_t> local_rank = groups_.LocalRank(remains.group);
  if (!local_rank.has_value()) return;
  uses_.emit(WorkerUnkillable{generation(), RemainsOf(remains, *local_rank)});
}

void NodeWorkers::OnAllGone(const supervisor::AllGoneFrame& gone) {
  if (!groups_.LocalRank(gone.group).has_value()) return;
  groups_.Gone(gone.group);
  if (!groups_.Stopped()) return;
  outputs_.FlushAll();
  EmitGone();
}

}  // namespace cadre::agent
