#include "launcher/slurm/accounted_job.h"

#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "base/host_ranges.h"

namespace cadre::launcher {

v1::JobStatus StatusOfAccounted(const v1::AccountedJob& job) {
  v1::JobStatus status;
  status.set_name(job.name());
  status.set_submitted_name(job.name());
  status.set_user(job.user());
  status.set_submission(job.id());
  status.set_step_of(job.step_of());
  status.set_step(job.step());
  status.set_array(job.array());
  status.set_array_index(job.array_index());
  status.set_array_size(job.array_size());
  status.set_phase(job.phase());
  status.set_priority(job.priority());
  status.set_restarts(job.restarts());
  status.set_submitted_unix_ms(job.submitted_unix_ms());
  status.set_began_unix_ms(job.began_unix_ms());
  status.set_ended_unix_ms(job.ended_unix_ms());
  status.set_limit_us(job.limit_us());
  status.set_min_nodes(job.node_count());
  status.set_max_nodes(job.node_count());
  status.set_workers(job.workers());
  status.set_world_size(job.workers());
  status.set_cpus(job.cpus());
  status.set_gpus(job.gpus());
  status.set_memory(job.memory());
  status.set_command(job.command());
  status.set_working_dir(job.working_dir());
  const auto nodes = ExpandHosts(job.nodes());
  if (nodes.ok()) status.mutable_allocated()->Assign(nodes->begin(), nodes->end());
  v1::Verdict* verdict = status.mutable_verdict();
  verdict->set_outcome(job.phase());
  verdict->set_message(job.message());
  verdict->set_exit_status(job.exit_status());
  verdict->set_restarts(job.restarts());
  verdict->set_generations(job.generations());
  if (job.cause() != v1::FAILURE_CAUSE_UNSPECIFIED) {
    verdict->mutable_root_cause()->set_cause(job.cause());
    if (job.signal() != 0) verdict->mutable_root_cause()->mutable_exit()->set_signal(job.signal());
  }
  return status;
}

void AddAccounted(const std::vector<v1::AccountedJob>& accounted,
                  std::vector<v1::JobStatus>* jobs) {
  std::set<uint64_t> known;
  for (const v1::JobStatus& job : *jobs) known.insert(job.submission());
  for (const v1::AccountedJob& job : accounted) {
    if (job.id() != 0 && known.insert(job.id()).second) jobs->push_back(StatusOfAccounted(job));
  }
}

std::set<uint64_t> IdsIn(const std::set<std::string>& texts) {
  std::set<uint64_t> ids;
  for (const std::string& text : texts) {
    size_t digits = 0;
    while (digits < text.size() && absl::ascii_isdigit(text[digits])) ++digits;
    uint64_t id = 0;
    if (absl::SimpleAtoi(absl::string_view(text).substr(0, digits), &id) && id != 0) ids.insert(id);
  }
  return ids;
}

std::set<uint64_t> UnknownIds(const std::set<uint64_t>& ids,
                              const std::vector<v1::JobStatus>& jobs) {
  std::set<uint64_t> unknown = ids;
  for (const v1::JobStatus& job : jobs) {
    // Of an array some elements may have been forgotten.
    if (job.array() == 0) unknown.erase(job.submission());
  }
  return unknown;
}

}  // namespace cadre::launcher
