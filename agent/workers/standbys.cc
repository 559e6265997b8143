#include "agent/workers/standbys.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/workers/exit_report.h"
#include "agent/workers/worker_start.h"
#include "base/check.h"

namespace cadre::agent {

// None with an adopt timeout, since an agent that adopts the workers would not know of them.
size_t StandbysWanted(const v1::RestartPolicy& restart, const WorkerOptions& options,
                      absl::Duration adopt_timeout, size_t workers) {
  const bool wanted = restart.has_standby() ? restart.standby() : restart.in_place();
  if (!wanted || adopt_timeout > absl::ZeroDuration()) return 0;
  if (!options.env_style.empty()) return 0;  // its variables are not part of an assignment
  return restart.in_place() ? 1 : workers;
}

void Standbys::Begin(std::optional<supervisor::StartFrame> frame, size_t wanted,
                     uint32_t first_rank) {
  frame_ = std::move(frame);
  wanted_ = frame_.has_value() ? wanted : 0;
  first_rank_ = first_rank;
  pending_ = true;
  start_at_ = MonoTime::Never();
}

std::vector<supervisor::StartFrame> Standbys::Start(MonoTime now,
                                                    const std::string& progress_directory,
                                                    const std::function<uint64_t()>& take_group) {
  if (!pending_) return {};
  if (start_at_ == MonoTime::Never()) start_at_ = now + kStandbyDelay;
  if (now < start_at_) return {};
  pending_ = false;
  CADRE_CHECK(wanted_ == 0 || frame_.has_value(), "nothing says how they are started");
  std::vector<supervisor::StartFrame> frames;
  for (int i = 0; standbys_.size() < wanted_; ++i) {
    const uint64_t group = take_group();
    const std::string progress_file = absl::StrCat(progress_directory, "/standby-", group);
    supervisor::StartFrame frame =
        StandbyFrame(*frame_, static_cast<int>(first_rank_) + i, progress_file);
    frame.group = group;
    const std::string directory = std::filesystem::path(frame.error_file).parent_path();
    const bool added = standbys_.emplace(group, Standby{progress_file, directory}).second;
    CADRE_CHECK(added, "group ", group, " is used twice");
    frames.push_back(std::move(frame));
  }
  return frames;
}

std::optional<Standby> Standbys::Remove(uint64_t group) {
  const auto found = standbys_.find(group);
  if (found == standbys_.end()) return std::nullopt;
  Standby standby = std::move(found->second);
  standbys_.erase(found);
  return standby;
}

std::string StandbyEnded(const Standby& standby, const supervisor::ExitedFrame& exited,
                         bool has_logs) {
  return absl::StrCat("a standby process, which would replace a lost worker, ", HowItEnded(exited),
                      has_logs ? "; its logs are in " + standby.directory : "",
                      "; --set restart.standby=false runs the job without standby processes");
}

}  // namespace cadre::agent
