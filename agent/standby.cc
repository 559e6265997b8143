// Processes of the program beyond the node's workers, which stand by for those that a failure ends
// (agent/supervisor/standby.h). The core and the server know nothing of them.
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/daemon_impl.h"
#include "base/clock.h"
#include "base/progress_snapshot.h"

namespace cadre {
namespace {

// After the workers have begun: what starts with them has the processors first.
constexpr absl::Duration kStandbyDelay = absl::Seconds(2);

}  // namespace

// None that an agent which takes over would not know of.
size_t Daemon::StandbysWanted() const {
  const v1::RestartPolicy& restart = spec_.restart();
  const bool wanted = restart.has_standby() ? restart.standby() : restart.in_place();
  if (!wanted || !standby_like_ || options_.adopt_timeout > absl::ZeroDuration()) return 0;
  if (!options_.workers.env_style.empty()) return 0;  // whose variables are part of no assignment
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
    const std::string progress_file = absl::StrCat(local_->directory(), "/standby-", group);
    supervisor::StartFrame frame =
        StandbyFrame(*standby_like_, static_cast<int>(first_rank_) + i, progress_file);
    frame.group = group;
    standbys_[group] = {progress_file, std::filesystem::path(frame.error_file).parent_path()};
    ToSupervisor(std::move(frame));
  }
}

// Who touches the file that it was started with is seen there.
void Daemon::OnStandbyPlaced(uint64_t was, uint32_t local_rank) {
  const auto standby = standbys_.find(was);
  if (standby == standbys_.end()) return;
  std::error_code ignored;
  std::filesystem::create_symlink(standby->second.progress_file, files_[local_rank].progress_file,
                                  ignored);
  standbys_.erase(standby);
}

bool Daemon::OnStandbyExited(const supervisor::ExitedFrame& exited) {
  const auto standby = standbys_.find(exited.group);
  if (standby == standbys_.end()) return false;
  display_.Line(absl::StrCat(
      "a process that stood by for a worker that is lost ",
      exited.signal != 0 ? absl::StrCat("was killed by signal ", exited.signal)
                         : absl::StrCat("exited with status ", exited.exit_code),
      options_.output.log_dir.empty() ? "" : "; its logs: " + standby->second.directory,
      "; --standby no does without"));
  // What it left behind goes too. In its place another one is started with the next generation.
  standbys_.erase(standby);
  ToSupervisor(supervisor::StopFrame{exited.group, 0});
  return true;
}

}  // namespace cadre
