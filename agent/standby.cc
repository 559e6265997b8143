// Processes of the program beyond the node's workers, started to wait for the places of those that
// a failure ends. The core and the server know nothing of them.
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/daemon_impl.h"
#include "base/clock.h"
#include "base/progress_snapshot.h"

namespace cadre {
namespace {

// After the workers have asked for their places: what starts with them has the processors first.
constexpr absl::Duration kStandbyDelay = absl::Seconds(2);

}  // namespace

// None where what a process is started with depends on its local rank, and none that an agent which
// takes over would not know of.
size_t Daemon::StandbysWanted() const {
  const v1::RestartPolicy& restart = spec_.restart();
  const bool wanted = restart.has_standby() ? restart.standby() : restart.in_place();
  if (!wanted || !standby_like_ || options_.adopt_timeout > absl::ZeroDuration()) return 0;
  if (options_.gpus_per_worker_own || options_.virtual_local_rank) return 0;
  if (!options_.env_style.empty() || !standby_like_->cpus.empty()) return 0;
  for (const std::string& argument : spec_.command()) {
    if (absl::StrContains(argument, "${local_rank}")) return 0;
  }
  return restart.in_place() ? 1 : files_.size();
}

void Daemon::StartStandbys() {
  if (standbys_of_ == generation_ || !local_->WouldStandBy()) return;
  if (standbys_at_ == MonoTime::Never()) standbys_at_ = MonoNow() + kStandbyDelay;
  if (MonoNow() < standbys_at_) return;
  standbys_of_ = generation_;
  const size_t wanted = StandbysWanted();
  // Numbered by rank, so that nodes which share the log directory have files of their own.
  for (int i = 0; standbys_.size() < wanted; ++i) {
    const uint64_t group = groups_.Take();
    // No worker has such a rank.
    std::string progress_file = ProgressFilePath(local_->directory(), generation_, -1 - i);
    supervisor::StartFrame frame =
        StandbyFrame(*standby_like_, {group, static_cast<int>(first_rank_) + i, progress_file});
    standbys_[group].files = FilesOf(frame, std::move(progress_file));
    ToSupervisor(std::move(frame));
  }
}

std::map<uint64_t, uint32_t> Daemon::PlacesForStandbys(const StartWorkers& command) const {
  std::map<uint64_t, uint32_t> places;
  uint32_t local_rank = 0;
  for (const uint64_t group : local_->StandingBy()) {
    const auto standby = standbys_.find(group);
    if (standby == standbys_.end() || standby->second.pid == 0) continue;
    while (command.kept.count(local_rank) != 0) ++local_rank;
    if (local_rank >= command.assign.local_world_size()) break;
    places[group] = local_rank++;
  }
  return places;
}

void Daemon::PlaceStandby(uint64_t group, uint32_t local_rank) {
  Standby standby = std::move(standbys_.at(group));
  standbys_.erase(group);
  groups_.Add(group, local_rank);
  files_[local_rank] = std::move(standby.files);
  LinkLogs(local_rank);
  pids_[local_rank] = standby.pid;
  own_events_.push_back(WorkerRuns{generation_, local_rank, standby.pid});
}

bool Daemon::OnStandbyFrame(const supervisor::Frame& frame) {
  if (const auto* started = std::get_if<supervisor::StartedFrame>(&frame)) {
    const auto standby = standbys_.find(started->group);
    if (standby == standbys_.end()) return false;
    standby->second.pid = started->pid;
    return true;
  }
  const auto* exited = std::get_if<supervisor::ExitedFrame>(&frame);
  if (exited == nullptr || standbys_.count(exited->group) == 0) return false;
  display_.Line(
      absl::StrCat("a process that stood by for a worker that is lost ",
                   exited->signal != 0 ? absl::StrCat("was killed by signal ", exited->signal)
                                       : absl::StrCat("exited with status ", exited->exit_code),
                   options_.output.log_dir.empty()
                       ? ""
                       : absl::StrCat("; its logs: ", standbys_[exited->group].files.directory),
                   "; --standby no does without"));
  // What it left behind goes too. In its place another one is started with the next generation.
  standbys_.erase(exited->group);
  ToSupervisor(supervisor::StopFrame{exited->group, 0});
  return true;
}

}  // namespace cadre
