#include "agent/workers/worker_environment.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/progress_snapshot.h"
#include "base/status_macros.h"

namespace cadre::agent {
namespace {

// What SetTorchrun() and SetCadre() set over all else, and the supervisor adds: of this, what is
// another in each place and generation,
constexpr absl::string_view kAssignment[] = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "NODE_RANK",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
    "CADRE_TORCH_STORE",
    "CADRE_GENERATION",
    "CADRE_PROGRESS_FILE",
    "CADRE_CHECKPOINT_FILE",
    "CADRE_STACK_FILE",
};

// and what is not.
constexpr absl::string_view kOfTheJob[] = {
    "ROLE_NAME",     "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "CADRE_JOB",
    "CADRE_AGENT",   "CADRE_TOKEN_FILE",          "CADRE_PROGRESS_FD",   "CADRE_CHECKPOINT_MEMORY",
    "CADRE_ENCRYPT",
};

// What SetSlurm() sets.
constexpr absl::string_view kOfSlurm[] = {
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES",
    "SLURM_STEP_NUM_NODES",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_GTIDS",
    "SLURM_SRUN_COMM_HOST",
    "SLURM_LAUNCH_NODE_IPADDR",
};

template <size_t count>
bool IsIn(const absl::string_view (&names)[count], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Those of the entries that are, or are not, of the assignment.
std::vector<std::string> Chosen(const std::vector<std::string>& environment, bool assigned) {
  std::vector<std::string> chosen;
  for (const std::string& entry : environment) {
    const absl::string_view name = absl::string_view(entry).substr(0, entry.find('='));
    if (IsIn(kAssignment, name) == assigned) chosen.push_back(entry);
  }
  return chosen;
}

using Variables = std::map<std::string, std::string>;

Variables Inherit(const WorkerEnvironmentOptions& options) {
  Variables variables;
  for (const std::string& entry : options.base) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) continue;
    variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  for (const auto& [name, value] : options.spec.env()) variables[name] = value;
  return variables;
}

void SetTorchrun(const WorkerEnvironmentOptions& options, uint32_t local_rank,
                 const std::string& error_file, Variables& out) {
  const v1::Assign& assign = options.assign;
  const std::string rank = absl::StrCat(assign.first_rank() + local_rank);
  const std::string world = absl::StrCat(assign.world_size());
  out["RANK"] = rank;
  out["LOCAL_RANK"] = absl::StrCat(options.workers.virtual_local_rank ? 0 : local_rank);
  out["WORLD_SIZE"] = world;
  out["LOCAL_WORLD_SIZE"] = absl::StrCat(assign.local_world_size());
  out["GROUP_RANK"] = absl::StrCat(assign.node_rank());
  out["GROUP_WORLD_SIZE"] = absl::StrCat(assign.nodes());
  out["NODE_RANK"] = absl::StrCat(assign.node_rank());
  out["ROLE_NAME"] = options.spec.role().empty() ? "default" : options.spec.role();
  const bool several_roles = assign.role_world_size() > 0;
  out["ROLE_RANK"] = several_roles ? absl::StrCat(assign.role_first_rank() + local_rank) : rank;
  out["ROLE_WORLD_SIZE"] = several_roles ? absl::StrCat(assign.role_world_size()) : world;
  out["MASTER_ADDR"] = assign.master_addr();
  out["MASTER_PORT"] = absl::StrCat(assign.master_port());
  out["TORCHELASTIC_RESTART_COUNT"] = absl::StrCat(assign.restart_count());
  out["TORCHELASTIC_MAX_RESTARTS"] = absl::StrCat(assign.max_restarts());
  out["TORCHELASTIC_RUN_ID"] =
      options.workers.run_id.empty() ? options.job : options.workers.run_id;
  // "True" makes every rank a client, of a store that somebody has to serve. The interpreter's
  // start hook goes by the address instead (agent/supervisor/warm/own_ranks.py).
  out["TORCHELASTIC_USE_AGENT_STORE"] = options.agent_store ? "True" : "False";
  out["TORCHELASTIC_ERROR_FILE"] = error_file;
  out.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (assign.local_world_size() > 1) out.emplace("OMP_NUM_THREADS", "1");
}

void SetCadre(const WorkerEnvironmentOptions& options, uint32_t local_rank, Variables& out) {
  out["CADRE_JOB"] = options.job;
  out["CADRE_GENERATION"] = absl::StrCat(options.generation);
  out["CADRE_AGENT"] = options.socket;
  out["CADRE_TOKEN_FILE"] = options.token_file;
  const std::string directory = options.socket.substr(0, options.socket.rfind('/'));
  const int rank = static_cast<int>(options.assign.first_rank() + local_rank);
  out["CADRE_PROGRESS_FILE"] = ProgressFilePath(directory, options.generation, rank);
  out["CADRE_STACK_FILE"] = StackFilePath(directory, options.generation, rank);
  out["CADRE_CHECKPOINT_FILE"] = CheckpointFilePath(directory, options.generation);
  out["CADRE_CHECKPOINT_MEMORY"] = CheckpointMemoryPath(directory);
  out["CADRE_ENCRYPT"] = options.spec.encrypt() ? "1" : "0";
  // Another job's, within one of whose workers this one was started, serves none of these.
  out.erase("CADRE_TORCH_STORE");
  if (options.agent_store) {
    out["CADRE_TORCH_STORE"] =
        absl::StrCat(options.assign.master_addr(), ":", options.assign.master_port());
  }
}

// As srun sets them for a task of a step with one task per worker.
void SetSlurm(const v1::Assign& assign, uint32_t local_rank, Variables& out) {
  const std::string world = absl::StrCat(assign.world_size());
  const std::string nodes = absl::StrCat(assign.nodes());
  out["SLURM_PROCID"] = absl::StrCat(assign.first_rank() + local_rank);
  out["SLURM_LOCALID"] = absl::StrCat(local_rank);
  out["SLURM_NODEID"] = absl::StrCat(assign.node_rank());
  for (const char* name : {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"}) {
    out[name] = world;
  }
  for (const char* name : {"SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"}) {
    out[name] = nodes;
  }
  out["SLURM_NTASKS_PER_NODE"] = absl::StrCat(assign.local_world_size());
  std::vector<uint32_t> global(assign.local_world_size());
  std::iota(global.begin(), global.end(), assign.first_rank());
  out["SLURM_GTIDS"] = absl::StrJoin(global, ",");
  // Programs take it for the address of rank 0, which under srun it is only where srun runs there.
  out["SLURM_SRUN_COMM_HOST"] = assign.master_addr();
  out["SLURM_LAUNCH_NODE_IPADDR"] = assign.master_addr();
  // Of a step with one task per node these speak of the launchers.
  for (const char* name : {"SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASK_PID"}) {
    out.erase(name);
  }
}

// Whether they would otherwise have Slurm's numbers of their launcher, and not the job's spec says
// which ones.
bool IsInSlurm(const WorkerEnvironmentOptions& options, const Variables& variables) {
  return variables.count("SLURM_JOB_ID") != 0 && options.spec.env().count("SLURM_PROCID") == 0;
}

absl::Status SetStyles(const WorkerEnvironmentOptions& options, uint32_t local_rank,
                       Variables& out) {
  const v1::Assign& assign = options.assign;
  if (IsInSlurm(options, out)) SetSlurm(assign, local_rank, out);
  const std::string rank = absl::StrCat(assign.first_rank() + local_rank);
  const std::string world = absl::StrCat(assign.world_size());
  for (const absl::string_view style :
       absl::StrSplit(options.workers.env_style, absl::ByAnyChar(", "), absl::SkipEmpty())) {
    if (style == "slurm") {
      SetSlurm(assign, local_rank, out);
    } else if (style == "mpi") {
      out["OMPI_COMM_WORLD_RANK"] = rank;
      out["OMPI_COMM_WORLD_SIZE"] = world;
      out["OMPI_COMM_WORLD_LOCAL_RANK"] = absl::StrCat(local_rank);
      out["OMPI_COMM_WORLD_NODE_RANK"] = absl::StrCat(local_rank);
      out["OMPI_COMM_WORLD_LOCAL_SIZE"] = absl::StrCat(assign.local_world_size());
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--env-style: '", style, "' is unknown; expected slurm, mpi or both"));
    }
  }
  return absl::OkStatus();
}

absl::Status SetGpus(const WorkerEnvironmentOptions& options, uint32_t local_rank, Variables& out) {
  if (!options.workers.gpus_per_worker_own && !options.workers.virtual_local_rank)
    return absl::OkStatus();
  const uint32_t each = std::max<uint32_t>(1, options.spec.resources().gpus_per_worker());
  const uint32_t first = local_rank * each;
  std::vector<std::string> own;
  const auto inherited = out.find("CUDA_VISIBLE_DEVICES");
  if (inherited == out.end()) {
    for (uint32_t i = 0; i < each; ++i) own.push_back(absl::StrCat(first + i));
  } else {
    const std::vector<std::string> visible =
        absl::StrSplit(inherited->second, absl::ByAnyChar(", "), absl::SkipEmpty());
    if (visible.size() < first + each) {
      return absl::InvalidArgumentError(
          absl::StrCat("local rank ", local_rank, " needs GPU ", first + each - 1,
                       " of its node, but CUDA_VISIBLE_DEVICES=", inherited->second, " names only ",
                       visible.size(), "; start fewer workers or make more GPUs visible"));
    }
    own.assign(visible.begin() + first, visible.begin() + first + each);
  }
  out["CUDA_VISIBLE_DEVICES"] = absl::StrJoin(own, ",");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> BuildWorkerEnvironment(
    const WorkerEnvironmentOptions& options, uint32_t local_rank, const std::string& error_file) {
  CADRE_CHECK(local_rank < options.assign.local_world_size(), "local rank ", local_rank, " of ",
              options.assign.local_world_size());
  Variables variables = Inherit(options);
  SetTorchrun(options, local_rank, error_file, variables);
  SetCadre(options, local_rank, variables);
  RETURN_IF_ERROR(SetStyles(options, local_rank, variables));
  RETURN_IF_ERROR(SetGpus(options, local_rank, variables));
  std::vector<std::string> environment;
  environment.reserve(variables.size());
  for (const auto& [name, value] : variables) environment.push_back(absl::StrCat(name, "=", value));
  return environment;
}

bool IsWorkersOwn(absl::string_view name) {
  return IsIn(kAssignment, name) || IsIn(kOfTheJob, name);
}

bool IsOfALaunchersStyle(absl::string_view name) {
  return IsIn(kOfSlurm, name) || absl::StartsWith(name, "OMPI_COMM_WORLD_");
}

std::vector<std::string> AssignmentOf(const std::vector<std::string>& environment) {
  return Chosen(environment, true);
}

std::vector<std::string> WithoutAssignment(const std::vector<std::string>& environment) {
  return Chosen(environment, false);
}

std::vector<std::string> BuildWorkerArguments(const v1::JobSpec& spec, uint32_t local_rank) {
  std::vector<std::string> arguments;
  for (const std::string& argument : spec.command()) {
    arguments.push_back(
        absl::StrReplaceAll(argument, {{"${local_rank}", absl::StrCat(local_rank)}}));
  }
  return arguments;
}

}  // namespace cadre::agent
