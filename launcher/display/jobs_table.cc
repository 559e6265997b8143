#include "launcher/display/jobs_table.h"

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "launcher/display/status_block.h"
#include "launcher/display/table.h"
#include "rpc/job_phase.h"

namespace cadre::launcher {
namespace {

// Those of a job that has ended do not run, and it had so many.
std::string WorkersOf(const v1::JobStatus& job) {
  if (!job.has_verdict()) return absl::StrCat(job.workers_running(), "/", job.world_size());
  return job.world_size() == 0 ? "-" : absl::StrCat(job.world_size());
}

// The first cause comes first.
std::string ReasonOf(const v1::JobStatus& job) {
  const std::string& text = job.has_verdict()            ? job.verdict().message()
                            : !job.stop_reason().empty() ? job.stop_reason()
                            : !job.stall().empty()       ? job.stall()
                                                         : job.waiting_for();
  return Shortened(EscapeControl(text), kReasonBytes);
}

// Who submitted it, or whose token its first node had; none for an administrator's.
std::string UserOf(const v1::JobStatus& job) {
  const std::string& user = job.user().empty() ? job.started_by() : job.user();
  return user.empty() ? "-" : user;
}

}  // namespace

std::string JobsTable(const std::vector<v1::JobStatus>& jobs) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::JobStatus& job : jobs) {
    rows.push_back({job.name(), UserOf(job), rpc::PhaseName(job.phase()),
                    absl::StrCat(job.generation()), absl::StrCat(NodesIn(job)), WorkersOf(job),
                    absl::StrCat(job.restarts(), "/", job.max_restarts()),
                    job.has_progress() ? ProgressText(job.progress()) : "-", ReasonOf(job)});
  }
  return FormatTable(
      {"JOB", "USER", "PHASE", "GENERATION", "NODES", "WORKERS", "RESTARTS", "PROGRESS", "REASON"},
      rows);
}

}  // namespace cadre::launcher
