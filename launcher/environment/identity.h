// Identifies this launcher from its environment: under Slurm, an MPI launcher, Kubernetes, or with
// MASTER_ADDR and related variables. Pure: environments are passed as maps.
#ifndef CADRE_LAUNCHER_ENVIRONMENT_IDENTITY_H_
#define CADRE_LAUNCHER_ENVIRONMENT_IDENTITY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::launcher {

using EnvironmentMap = std::map<std::string, std::string>;

struct Identity {
  // Where these values come from, for messages: "Slurm", "Open MPI", ...
  std::string source;
  int node_rank = -1;
  // 0: the environment does not tell for certain; then `nodes_hint` has what it does tell, as a
  // clause.
  uint32_t nodes = 0;
  std::string nodes_hint;
  // The host of the node that serves, unless that node publishes another address (LaunchBoard);
  // empty: it is not known.
  std::string endpoint_host;
  int endpoint_port = 0;
  // The host's name may not resolve yet, not even on that node.
  bool endpoint_comes_later = false;
  // Whether this node serves. If it is not set, the node that owns the endpoint's address serves.
  std::optional<bool> serves;
  // Every node's name, in order; empty: they are not known.
  std::vector<std::string> node_names;
  // This node's name among them.
  std::string node_name;
  // The names are Slurm's, which may know addresses if they do not resolve; SLURM_NODE_ALIASES.
  bool names_are_slurms = false;
  std::string slurm_aliases;
  // A name for the job that is the same on every node.
  std::string job_name;
  // The name of this launch (a Slurm step, one mpirun), unique and the same on every node; the
  // files that its launchers share are named after it. Empty: it is not known.
  std::string launch;
  // The number of launchers started on this node, and the index of this one. The first one is the
  // node's agent.
  uint32_t local_tasks = 1;
  uint32_t local_task = 0;
  // Under mpirun: the number of launchers on all nodes together, and the index of this one. 0: it
  // is not known.
  uint32_t tasks = 0;
  uint32_t task = 0;
  // The descriptor at which this mpirun answers PMI requests; -1: there is none.
  int pmi = -1;
  // The allocation of a cluster's job for which an agent started this launcher; 0: no agent did.
  uint64_t allocation = 0;
};

// Each returns nullopt if its variables are not set, and INVALID_ARGUMENT naming the variable if
// they are not valid.
absl::StatusOr<std::optional<Identity>> ReadSlurm(const EnvironmentMap& environment);
absl::StatusOr<std::optional<Identity>> ReadOpenMpi(const EnvironmentMap& environment);
// For Hydra and related launchers; Slurm may set the same variables.
absl::StatusOr<std::optional<Identity>> ReadPmi(const EnvironmentMap& environment);
absl::StatusOr<std::optional<Identity>> ReadKubernetes(const EnvironmentMap& environment);
absl::StatusOr<std::optional<Identity>> ReadTorchrun(const EnvironmentMap& environment);

// Reads the variables that 'cadre agent' sets.
absl::StatusOr<std::optional<Identity>> ReadCluster(const EnvironmentMap& environment);

// Tries the sources in this order: an agent's variables, because it knows what it starts;
// MASTER_ADDR, because a user set it; mpirun before Slurm, because mpirun starts programs inside
// Slurm's allocations.
absl::StatusOr<std::optional<Identity>> DetectIdentity(const EnvironmentMap& environment);

// A launch name from an mpirun's name of its job, usable as a file name.
std::string MpiLaunchName(absl::string_view job);

// A port between 20000 and 29399 that depends only on `seed`, so that jobs can share a machine.
int PortFor(absl::string_view seed);

// The variable as a number from 0; nullopt if it is unset, INVALID_ARGUMENT if it is no number.
absl::StatusOr<std::optional<uint32_t>> NumberIn(const EnvironmentMap& environment,
                                                 const std::string& name);
// Empty if the variable is unset.
std::string TextIn(const EnvironmentMap& environment, const std::string& name);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_IDENTITY_H_
