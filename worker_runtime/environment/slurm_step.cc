#include "worker_runtime/environment/slurm_step.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre::environment {
namespace {

constexpr uint64_t kFirstPort = 15000;
constexpr uint64_t kPorts = 10000;
// Between the ports of two steps of one job.
constexpr uint64_t kStepStride = 101;

uint64_t IdIn(const GetVariable& get, const char* name) {
  uint64_t id = 0;
  return absl::SimpleAtoi(TextOf(get, name), &id) ? id : 0;
}

}  // namespace

std::string FirstHost(absl::string_view list) {
  std::string host;
  bool skips = false;
  bool inside = false;
  for (const char c : list) {
    if (c == ',' && !inside) break;
    if (c == '[') {
      inside = true;
    } else if (c == ']') {
      inside = skips = false;
    } else if (inside && (c == ',' || c == '-')) {
      // What follows are the other hosts of this bracket.
      skips = true;
    } else if (!skips) {
      host += c;
    }
  }
  return host;
}

Result<std::optional<SlurmStep>> ReadSlurmStep(const GetVariable& get) {
  absl::string_view list = TextOf(get, "SLURM_STEP_NODELIST");
  const bool in_step = !list.empty() || !TextOf(get, "SLURM_STEP_ID").empty();
  if (list.empty()) list = TextOf(get, "SLURM_JOB_NODELIST");
  SlurmStep step;
  ASSIGN_OR_RETURN(const std::optional<int> rank, NumberOf(get, "SLURM_PROCID"));
  // The step's own number comes first: that of the job may be inherited.
  ASSIGN_OR_RETURN(std::optional<int> tasks, NumberOf(get, "SLURM_STEP_NUM_TASKS"));
  if (tasks.has_value()) {
    step.tasks_variable = "SLURM_STEP_NUM_TASKS";
  } else {
    ASSIGN_OR_RETURN(tasks, NumberOf(get, "SLURM_NTASKS"));
  }
  if (!in_step || !rank.has_value() || !tasks.has_value()) return std::optional<SlurmStep>();
  step.rank = *rank;
  step.tasks = *tasks;
  ASSIGN_OR_RETURN(step.local_rank, NumberOf(get, "SLURM_LOCALID"));
  ASSIGN_OR_RETURN(std::optional<int> nodes, NumberOf(get, "SLURM_STEP_NUM_NODES"));
  if (!nodes.has_value()) {
    ASSIGN_OR_RETURN(nodes, NumberOf(get, "SLURM_NNODES"));
  }
  step.nodes = nodes.value_or(list.find_first_of("[,") == list.npos ? 1 : 2);
  step.first_host = step.nodes > 1 ? FirstHost(list) : "127.0.0.1";
  const uint64_t job = IdIn(get, "SLURM_JOB_ID"), number = IdIn(get, "SLURM_STEP_ID");
  step.port =
      static_cast<uint16_t>(kFirstPort + (job % kPorts + kStepStride * (number % kPorts)) % kPorts);
  step.name = absl::StrCat("slurm-", job, ".", number);
  return std::optional<SlurmStep>(std::move(step));
}

}  // namespace cadre::environment
