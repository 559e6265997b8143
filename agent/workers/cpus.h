// Which CPUs this process may use and how workers share them, asked of hwloc. Loading the topology
// costs milliseconds: call only when a count or a binding is wanted. Any thread.
#ifndef CADRE_AGENT_WORKERS_CPUS_H_
#define CADRE_AGENT_WORKERS_CPUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::agent {

// One core (its CPUs, hyperthreads included) and the NUMA node it belongs to.
struct CpuCore {
  std::vector<uint32_t> cpus;
  uint32_t numa = 0;
};

// The cores of this machine that the process's affinity and cpuset leave it, in hwloc's order:
// cores that share most come next to each other. `synthetic` is for tests: an hwloc description
// such as "numa:2 core:4 pu:2" in place of the machine.
absl::StatusOr<std::vector<CpuCore>> FindCores(const std::string& synthetic = "");

// CPUs of each local rank. Empty lists: not bound.
//   none  nothing is bound
//   core  every worker has its own cores, as many for each as there are
//   numa  every worker has a whole NUMA node; workers take them in turn, in contiguous blocks
//   gpu   every worker has the CPUs next to its GPU (`gpu_cpus`, by local rank)
// INVALID_ARGUMENT: an unknown word, or fewer cores than workers with `core`.
absl::StatusOr<std::vector<std::vector<uint32_t>>> PlanBinding(
    absl::string_view bind, uint32_t workers, const std::vector<CpuCore>& cores,
    const std::vector<std::vector<uint32_t>>& gpu_cpus = {});

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_CPUS_H_
