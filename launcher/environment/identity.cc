// Finds out what started this launcher, and what it tells about the job's nodes: a section for each
// known source.
#include "launcher/environment/identity.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/host_ranges.h"
#include "base/status_macros.h"

namespace cadre::launcher {
absl::StatusOr<std::optional<uint32_t>> NumberIn(const EnvironmentMap& environment,
                                                 const std::string& name) {
  const std::string text = TextIn(environment, name);
  if (text.empty()) return std::optional<uint32_t>();
  uint32_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable ", name, ": expected a number, got '", text, "'"));
  }
  return std::optional<uint32_t>(value);
}

std::string TextIn(const EnvironmentMap& environment, const std::string& name) {
  const auto it = environment.find(name);
  return it == environment.end() ? "" : it->second;
}

int PortFor(absl::string_view seed) {
  // FNV-1a, which gives the same result on every node.
  uint32_t hash = 2166136261u;
  for (const char c : seed) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return 20000 + static_cast<int>(hash % 9400);
}

absl::StatusOr<std::optional<Identity>> DetectIdentity(const EnvironmentMap& environment) {
  for (const auto read :
       {ReadCluster, ReadTorchrun, ReadOpenMpi, ReadSlurm, ReadKubernetes, ReadPmi}) {
    ASSIGN_OR_RETURN(std::optional<Identity> identity, read(environment));
    if (identity.has_value()) return identity;
  }
  return std::optional<Identity>();
}

// Reads the environment of a Slurm job step (srun): the node list, this node's index in it, and a
// port of the step's own.

namespace {

// Steps of several components (srun a : b) have one list of nodes, in which a node that two of them
// share appears twice, and would count as two nodes of one name.
absl::Status CheckList(const EnvironmentMap& environment, const std::string& list,
                       const Identity& identity) {
  const std::set<std::string> different(identity.node_names.begin(), identity.node_names.end());
  if (different.size() != identity.nodes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "environment variable SLURM_STEP_NODELIST: '", list,
        "' names a node twice, as it does if components of a heterogeneous step share a node; "
        "start "
        "one launcher on each node, or add --nnodes, --rdzv-endpoint and --node-name to each"));
  }
  ASSIGN_OR_RETURN(const std::optional<uint32_t> nodes,
                   NumberIn(environment, "SLURM_STEP_NUM_NODES"));
  if (nodes.value_or(identity.nodes) == identity.nodes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("environment variables contradict each other: SLURM_STEP_NUM_NODES is ", *nodes,
                   ", but SLURM_STEP_NODELIST, '", list, "', has ", identity.nodes));
}

// With srun --ntasks-per-node=N every node has N launchers, of which the first one runs the
// workers.
absl::Status ReadTasks(const EnvironmentMap& environment, Identity& identity) {
  const std::string tasks = TextIn(environment, "SLURM_STEP_TASKS_PER_NODE");
  if (tasks.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<uint32_t> counts, ExpandCounts(tasks));
  if (counts.size() != identity.nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable SLURM_STEP_TASKS_PER_NODE: '", tasks, "' is for ",
                     counts.size(), " nodes, but SLURM_STEP_NODELIST has ", identity.nodes));
  }
  ASSIGN_OR_RETURN(const std::optional<uint32_t> all,
                   NumberIn(environment, "SLURM_STEP_NUM_TASKS"));
  const uint64_t sum = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  if (all.value_or(sum) != sum) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variables contradict each other: SLURM_STEP_NUM_TASKS is ", *all,
                     ", but SLURM_STEP_TASKS_PER_NODE, '", tasks, "', makes ", sum));
  }
  identity.local_tasks = std::max<uint32_t>(1, counts[identity.node_rank]);
  ASSIGN_OR_RETURN(const std::optional<uint32_t> local, NumberIn(environment, "SLURM_LOCALID"));
  if ((identity.local_tasks > 1 && !local.has_value()) ||
      local.value_or(0) >= identity.local_tasks) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable SLURM_LOCALID: expected 0 to ", identity.local_tasks - 1,
                     ", got '", TextIn(environment, "SLURM_LOCALID"), "'"));
  }
  identity.local_task = local.value_or(0);
  return absl::OkStatus();
}

// If Slurm gave each task GPUs of its own, the first task would have to start workers on GPUs that
// only the other tasks may use.
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
  // A batch script has SLURM_JOB_ID and SLURM_NODEID too, but runs on the first node only; only a
  // step has the step's node list.
  const std::string list = TextIn(environment, "SLURM_STEP_NODELIST");
  ASSIGN_OR_RETURN(std::optional<uint32_t> index, NumberIn(environment, "SLURM_NODEID"));
  if (list.empty() || !index.has_value()) return std::optional<Identity>();
  Identity identity;
  identity.source = "Slurm";
  ASSIGN_OR_RETURN(identity.node_names, ExpandHosts(list));
  identity.nodes = static_cast<uint32_t>(identity.node_names.size());
  // The list is in order of names; the components of a heterogeneous step may not be, and
  // SLURM_NODEID counts within the component.
  const auto own = std::find(identity.node_names.begin(), identity.node_names.end(),
                             TextIn(environment, "SLURMD_NODENAME"));
  if (own != identity.node_names.end()) {
    index = static_cast<uint32_t>(own - identity.node_names.begin());
  }
  if (*index >= identity.nodes) {
    return absl::InvalidArgumentError(absl::StrCat("environment variable SLURM_NODEID: ", *index,
                                                   ", but SLURM_STEP_NODELIST has ", identity.nodes,
                                                   " nodes"));
  }
  identity.node_rank = static_cast<int>(*index);
  RETURN_IF_ERROR(CheckList(environment, list, identity));
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
        "variables on (srun --export=ALL), or add --rdzv-endpoint HOST[:PORT]");
  }
  identity.endpoint_port = PortFor(absl::StrCat("slurm ", job, ".", step));
  identity.job_name = absl::AsciiStrToLower(absl::StrCat("slurm-", job, "-", step));
  // A requeued job has the same numbers again.
  ASSIGN_OR_RETURN(const std::optional<uint32_t> life,
                   NumberIn(environment, "SLURM_RESTART_COUNT"));
  identity.launch = absl::StrCat("slurm-", job, ".", step,
                                 life.value_or(0) == 0 ? "" : absl::StrCat(".r", *life));
  return std::optional<Identity>(std::move(identity));
}

// Reads mpirun's environment: Open MPI's variables, or PMI's as Hydra and related launchers set
// them. Of all processes on a node, one runs the workers.

namespace {

struct Names {
  const char* source;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr Names kOpenMpi = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kPmi = {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

// "MPI_LOCALNRANKS=2", "MPI_LOCALNRANKS is not set".
std::string Describe(const EnvironmentMap& environment, const char* name) {
  const std::string value = TextIn(environment, name);
  return value.empty() ? absl::StrCat(name, " is not set") : absl::StrCat(name, "=", value);
}

absl::Status CheckCounts(const EnvironmentMap& environment, const Names& names,
                         const Identity& identity) {
  if (identity.task < identity.tasks && identity.local_task < identity.local_tasks &&
      identity.local_tasks <= identity.tasks) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      names.source, "'s variables contradict each other: rank ", identity.task, " of ",
      identity.tasks, ", ", identity.local_task, " of ", identity.local_tasks, " on this node (",
      Describe(environment, names.rank), ", ", Describe(environment, names.size), ", ",
      Describe(environment, names.local_rank), ", ", Describe(environment, names.local_size), ")"));
}

// Returns nullopt if the rank or the size is not set. The variables do not tell on how many nodes
// the ranks are, unless all are on this one: 4 ranks, 2 of them here, may be on two nodes or on
// three.
absl::StatusOr<std::optional<Identity>> Read(const EnvironmentMap& environment,
                                             const Names& names) {
  ASSIGN_OR_RETURN(const std::optional<uint32_t> rank, NumberIn(environment, names.rank));
  ASSIGN_OR_RETURN(const std::optional<uint32_t> size, NumberIn(environment, names.size));
  if (!rank.has_value() || !size.has_value()) return std::optional<Identity>();
  ASSIGN_OR_RETURN(const std::optional<uint32_t> local_rank,
                   NumberIn(environment, names.local_rank));
  ASSIGN_OR_RETURN(const std::optional<uint32_t> local_size,
                   NumberIn(environment, names.local_size));
  Identity identity;
  identity.source = names.source;
  identity.task = *rank;
  identity.tasks = *size;
  identity.local_task = local_rank.value_or(0);
  identity.local_tasks = local_size.value_or(1);
  RETURN_IF_ERROR(CheckCounts(environment, names, identity));
  if (identity.tasks == identity.local_tasks) identity.nodes = 1;
  identity.nodes_hint = absl::StrCat(
      names.source, " does not say on how many nodes its ", identity.tasks, " ranks are (",
      Describe(environment, names.size), ", ", Describe(environment, names.local_size), ")");
  return std::optional<Identity>(std::move(identity));
}

}  // namespace

absl::StatusOr<std::optional<Identity>> ReadOpenMpi(const EnvironmentMap& environment) {
  ASSIGN_OR_RETURN(std::optional<Identity> identity, Read(environment, kOpenMpi));
  if (!identity.has_value()) return identity;
  identity->node_name = TextIn(environment, "PMIX_HOSTNAME");
  const std::string job = TextIn(environment, "PMIX_NAMESPACE");
  if (!job.empty()) identity->launch = MpiLaunchName(job);
  return identity;
}

absl::StatusOr<std::optional<Identity>> ReadPmi(const EnvironmentMap& environment) {
  ASSIGN_OR_RETURN(std::optional<Identity> identity, Read(environment, kPmi));
  if (!identity.has_value()) return identity;
  ASSIGN_OR_RETURN(const std::optional<uint32_t> pmi, NumberIn(environment, "PMI_FD"));
  if (pmi.has_value()) identity->pmi = static_cast<int>(*pmi);
  return identity;
}

std::string MpiLaunchName(absl::string_view job) {
  return absl::StrCat("mpi-", absl::StrReplaceAll(job, {{"/", "_"}}));
}

// MASTER_ADDR and related variables, as set by the Kubernetes training operator and many sbatch
// scripts.

absl::StatusOr<std::optional<Identity>> ReadTorchrun(const EnvironmentMap& environment) {
  Identity identity;
  identity.source = "MASTER_ADDR";
  identity.endpoint_host = TextIn(environment, "MASTER_ADDR");
  // A worker of another launcher has LOCAL_RANK; its variables describe workers, not nodes.
  if (identity.endpoint_host.empty() || !TextIn(environment, "LOCAL_RANK").empty()) {
    return std::optional<Identity>();
  }
  ASSIGN_OR_RETURN(std::optional<uint32_t> rank, NumberIn(environment, "NODE_RANK"));
  ASSIGN_OR_RETURN(std::optional<uint32_t> nodes, NumberIn(environment, "NNODES"));
  if (!rank.has_value()) {
    ASSIGN_OR_RETURN(rank, NumberIn(environment, "RANK"));
  }
  if (!nodes.has_value()) {
    ASSIGN_OR_RETURN(nodes, NumberIn(environment, "WORLD_SIZE"));
  }
  if (!nodes.has_value()) return std::optional<Identity>();
  ASSIGN_OR_RETURN(const std::optional<uint32_t> port, NumberIn(environment, "MASTER_PORT"));
  if (port.has_value() && (*port == 0 || *port > 65535)) {
    return absl::InvalidArgumentError(
        "environment variable MASTER_PORT: expected a port from 1 to 65535");
  }
  identity.endpoint_port = static_cast<int>(port.value_or(0));
  identity.nodes = *nodes;
  if (rank.has_value()) identity.node_rank = static_cast<int>(*rank);
  return std::optional<Identity>(std::move(identity));
}

// A pod of an indexed Job: pods are named <job>-<index>, and the first one is reachable under that
// name once a headless service exists, which CADRE_SERVICE names.

absl::StatusOr<std::optional<Identity>> ReadKubernetes(const EnvironmentMap& environment) {
  ASSIGN_OR_RETURN(const std::optional<uint32_t> index,
                   NumberIn(environment, "JOB_COMPLETION_INDEX"));
  if (!index.has_value()) return std::optional<Identity>();
  Identity identity;
  identity.source = "Kubernetes";
  identity.node_rank = static_cast<int>(*index);
  identity.serves = *index == 0;
  identity.nodes_hint =
      absl::StrCat("JOB_COMPLETION_INDEX=", *index, " says that this is pod ", *index,
                   " of an indexed Job, but no variable tells how many pods it has");
  const std::string host = TextIn(environment, "HOSTNAME");
  const std::string suffix = absl::StrCat("-", *index);
  const std::string service = TextIn(environment, "CADRE_SERVICE");
  if (absl::EndsWith(host, suffix) && !service.empty()) {
    identity.node_name = host;
    identity.job_name = host.substr(0, host.size() - suffix.size());
    identity.endpoint_comes_later = true;
    identity.endpoint_host = absl::StrCat(identity.job_name, "-0.", service);
  }
  return std::optional<Identity>(std::move(identity));
}

// A launcher that an agent started for its node's part of a submitted job.

absl::StatusOr<std::optional<Identity>> ReadCluster(const EnvironmentMap& environment) {
  const std::string part = TextIn(environment, "CADRE_CLUSTER_PART");
  if (part.empty()) return std::optional<Identity>();
  Identity identity;
  identity.source = "cadre agent";
  if (!absl::SimpleAtoi(part, &identity.allocation) || identity.allocation == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable CADRE_CLUSTER_PART: expected a number, got '", part,
                     "'; 'cadre agent' alone sets it"));
  }
  identity.node_name = TextIn(environment, "CADRE_CLUSTER_NODE");
  identity.node_names = absl::StrSplit(TextIn(environment, "CADRE_CLUSTER_NODES"), ',');
  identity.nodes = static_cast<uint32_t>(identity.node_names.size());
  // Even if the server is away meanwhile.
  identity.serves = false;
  return std::optional<Identity>(identity);
}

}  // namespace cadre::launcher
