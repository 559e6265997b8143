// Inside a Slurm job step (srun): node list, this node's index in it, and a port of the step's own.
#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "launcher/environment/host_list.h"
#include "launcher/environment/identity.h"

namespace cadre::launcher {
namespace {

// With srun --ntasks-per-node=N every node has N launchers, of which the first works.
absl::Status ReadTasks(const EnvironmentMap& environment, Identity& identity) {
  const std::string tasks = TextIn(environment, "SLURM_STEP_TASKS_PER_NODE");
  if (tasks.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<uint32_t> counts, ExpandTasksPerNode(tasks));
  if (counts.size() != identity.nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable SLURM_STEP_TASKS_PER_NODE: '", tasks, "' is for ",
                     counts.size(), " nodes, but SLURM_STEP_NODELIST has ", identity.nodes));
  }
  identity.local_tasks = std::max<uint32_t>(1, counts[identity.node_rank]);
  ASSIGN_OR_RETURN(const std::optional<uint32_t> local, NumberIn(environment, "SLURM_LOCALID"));
  if (identity.local_tasks > 1 && (!local.has_value() || *local >= identity.local_tasks)) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable SLURM_LOCALID: expected 0 to ", identity.local_tasks - 1,
                     ", got '", TextIn(environment, "SLURM_LOCALID"), "'"));
  }
  identity.local_task = local.value_or(0);
  return absl::OkStatus();
}

// Where Slurm gave each task GPUs of its own, the first task would have to start workers on GPUs
// that only the others may use.
absl::Status CheckGpus(const EnvironmentMap& environment, const Identity& identity) {
  const std::string visible = TextIn(environment, "CUDA_VISIBLE_DEVICES");
  ASSIGN_OR_RETURN(const std::optional<uint32_t> on_node,
                   NumberIn(environment, "SLURM_GPUS_ON_NODE"));
  if (identity.local_tasks == 1 || visible.empty() || !on_node.has_value()) {
    return absl::OkStatus();
  }
  const size_t shown = std::count(visible.begin(), visible.end(), ',') + 1;
  if (shown >= *on_node) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "Slurm gives this task ", shown, " of the node's ", *on_node,
      " GPUs (CUDA_VISIBLE_DEVICES=", visible,
      "), but one launcher per node needs all of them: add --gpu-bind=none to srun, or use "
      "--ntasks-per-node=1"));
}

}  // namespace

absl::StatusOr<std::optional<Identity>> ReadSlurm(const EnvironmentMap& environment) {
  // A batch script has SLURM_JOB_ID and SLURM_NODEID too, but runs on the first node only: what
  // tells a step from it is the step's own node list.
  const std::string list = TextIn(environment, "SLURM_STEP_NODELIST");
  ASSIGN_OR_RETURN(const std::optional<uint32_t> index, NumberIn(environment, "SLURM_NODEID"));
  if (list.empty() || !index.has_value()) return std::optional<Identity>();
  Identity identity;
  identity.source = "Slurm";
  ASSIGN_OR_RETURN(identity.node_names, ExpandHostList(list));
  identity.nodes = static_cast<uint32_t>(identity.node_names.size());
  if (*index >= identity.nodes) {
    return absl::InvalidArgumentError(absl::StrCat("environment variable SLURM_NODEID: ", *index,
                                                   ", but SLURM_STEP_NODELIST has ", identity.nodes,
                                                   " nodes"));
  }
  identity.node_rank = static_cast<int>(*index);
  RETURN_IF_ERROR(ReadTasks(environment, identity));
  RETURN_IF_ERROR(CheckGpus(environment, identity));
  identity.names_are_slurms = true;
  identity.slurm_aliases = TextIn(environment, "SLURM_NODE_ALIASES");
  identity.node_name = identity.node_names[*index];
  identity.endpoint_host = identity.node_names[0];
  identity.serves = *index == 0;
  const std::string job = TextIn(environment, "SLURM_JOB_ID");
  const std::string step = TextIn(environment, "SLURM_STEP_ID");
  if (job.empty() || step.empty()) {
    return absl::InvalidArgumentError(
        "SLURM_STEP_NODELIST is set, but SLURM_JOB_ID or SLURM_STEP_ID is not: pass all of Slurm's "
        "variables on (srun --export=ALL), or say --rdzv-endpoint HOST[:PORT]");
  }
  identity.endpoint_port = PortFor(absl::StrCat("slurm ", job, ".", step));
  identity.job_name = absl::AsciiStrToLower(absl::StrCat("slurm-", job, "-", step));
  identity.launch = absl::StrCat("slurm-", job, ".", step);
  // A job that was requeued has the same numbers.
  const std::string restarts = TextIn(environment, "SLURM_RESTART_COUNT");
  if (!restarts.empty() && restarts != "0") absl::StrAppend(&identity.launch, ".r", restarts);
  return std::optional<Identity>(std::move(identity));
}

}  // namespace cadre::launcher
