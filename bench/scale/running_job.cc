#include "bench/scale/running_job.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace cadre {

absl::Status LateError(absl::string_view what, const Marks& marks, const Fleet& fleet) {
  const std::string broken = fleet.broken();
  return absl::DeadlineExceededError(
      absl::StrCat(what, ": only ", marks.marked(), " of ", marks.count(), " within ",
                   absl::FormatDuration(kLoadPatience), broken.empty() ? "" : "; ", broken));
}

absl::StatusOr<std::unique_ptr<RunningJob>> RunningJob::Start(const ServerAddress& server,
                                                              size_t agents, uint32_t slots) {
  std::unique_ptr<RunningJob> job(new RunningJob(agents, slots));
  FleetOptions options;
  options.server = server;
  options.job = kLoadJob;
  options.agents = agents;
  options.slots = slots;
  job->fleet_ = std::make_unique<Fleet>(
      options, [job = job.get()](size_t agent, const v1::ServerMessage& message) {
        job->Hear(agent, message);
      });
  job->connected_ = MonoNow();
  job->fleet_->Connect();
  for (const auto& [what, marks] :
       {std::pair("joined", &job->welcomed_), std::pair("assigned", &job->assigned_),
        std::pair("running", &job->running_)}) {
    if (!marks->WaitForAll(kLoadPatience)) return LateError(what, *marks, *job->fleet_);
  }
  return job;
}

void RunningJob::Observe(Fleet::Observer observer) {
  auto next = observer ? std::make_shared<const Fleet::Observer>(std::move(observer)) : nullptr;
  const absl::MutexLock lock(&mutex_);
  observer_.swap(next);
}

void RunningJob::Hear(size_t agent, const v1::ServerMessage& message) {
  if (message.has_welcome()) welcomed_.Mark(agent);
  if (message.has_assign()) assigned_.Mark(agent);
  if (message.has_status() && message.status().workers_running() == world_) running_.Mark(agent);
  std::shared_ptr<const Fleet::Observer> observer;
  {
    const absl::MutexLock lock(&mutex_);
    observer = observer_;
  }
  if (observer != nullptr) (*observer)(agent, message);
}

}  // namespace cadre
