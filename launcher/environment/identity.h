// Which launcher this is by its environment: under Slurm, an MPI launcher, Kubernetes, or with
// MASTER_ADDR and friends set. Pure: environments come in as maps.
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
  // The source of all this, for messages: "Slurm", "Open MPI", ...
  std::string source;
  int node_rank = -1;
  // 0: it does not say for certain; then `unsaid` says what it does say, in a clause.
  uint32_t nodes = 0;
  std::string unsaid;
  // Where the node that serves can be reached, unless that node says otherwise (LaunchBoard);
  // empty: it does not say.
  std::string endpoint_host;
  int endpoint_port = 0;
  // Its name may not be there yet, not even to that node.
  bool endpoint_comes_later = false;
  // Whether that is this node. Without it, whoever owns the endpoint's address serves.
  std::optional<bool> serves;
  // Every node's name, in order; empty: it does not say.
  std::vector<std::string> node_names;
  // This node's name among them.
  std::string node_name;
  // Slurm gave the names, and may know addresses where they do not resolve; SLURM_NODE_ALIASES.
  bool names_are_slurms = false;
  std::string slurm_aliases;
  // A name for the job that is the same on every node.
  std::string job_name;
  // The name of this launch (a Slurm step, one mpirun), different from all others and the same on
  // every node; files that its launchers share are named by it. Empty: it does not say.
  std::string launch;
  // Launchers that were started on this node, and which of them this is. The first one is the
  // node's agent.
  uint32_t local_tasks = 1;
  uint32_t local_task = 0;
  // Of one mpirun: how many launchers it started on all nodes together, and which of those this is.
  // 0: it does not say.
  uint32_t tasks = 0;
  uint32_t task = 0;
  // The descriptor at which this mpirun answers questions in PMI's protocol; -1: there is none.
  int pmi = -1;
  // The part of a cluster's job that an agent started this launcher for; 0: none did.
  uint64_t part = 0;
};

// Each returns nothing where its variables are absent, INVALID_ARGUMENT naming the variable where
// they make no sense.
absl::StatusOr<std::optional<Identity>> ReadSlurm(const EnvironmentMap& environment);
absl::StatusOr<std::optional<Identity>> ReadOpenMpi(const EnvironmentMap& environment);
// Hydra and its relatives; Slurm may set the same variables.
absl::StatusOr<std::optional<Identity>> ReadPmi(const EnvironmentMap& environment);
absl::StatusOr<std::optional<Identity>> ReadKubernetes(const EnvironmentMap& environment);
absl::StatusOr<std::optional<Identity>> ReadTorchrun(const EnvironmentMap& environment);

// The variables that 'cadre agent' sets.
absl::StatusOr<std::optional<Identity>> ReadCluster(const EnvironmentMap& environment);

// The first of them that says something. An agent knows what it starts. MASTER_ADDR comes first: a
// person set it. mpirun comes before Slurm, within whose allocations it starts programs.
absl::StatusOr<std::optional<Identity>> DetectIdentity(const EnvironmentMap& environment);

// The name of an mpirun's launch, by what it calls its job. A file's name.
std::string MpiLaunchName(absl::string_view job);

// A port between 20000 and 29399 that depends on `seed` only, for jobs that share a machine.
int PortFor(absl::string_view seed);

// The variable as a number from 0; nothing where it is unset, INVALID_ARGUMENT where it is no
// number.
absl::StatusOr<std::optional<uint32_t>> NumberIn(const EnvironmentMap& environment,
                                                 const std::string& name);
// Empty where it is unset.
std::string TextIn(const EnvironmentMap& environment, const std::string& name);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_ENVIRONMENT_IDENTITY_H_
