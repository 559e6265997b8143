#include "agent/workers/cpus.h"

#include <errno.h>
#include <hwloc.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace cadre::agent {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, DestroyTopology>;

absl::StatusOr<Topology> LoadTopology(const std::string& synthetic) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return absl::InternalError("hwloc cannot start");
  Topology topology(raw);
  // Only cores and memory are asked for: looking at caches and devices takes most of the time.
  for (const hwloc_obj_type_t type :
       {HWLOC_OBJ_PCI_DEVICE, HWLOC_OBJ_OS_DEVICE, HWLOC_OBJ_BRIDGE, HWLOC_OBJ_MISC}) {
    hwloc_topology_set_type_filter(raw, type, HWLOC_TYPE_FILTER_KEEP_NONE);
  }
  if (!synthetic.empty() && hwloc_topology_set_synthetic(raw, synthetic.c_str()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("hwloc does not understand '", synthetic, "'"));
  }
  if (hwloc_topology_load(raw) != 0) {
    return absl::ErrnoToStatus(errno, "hwloc cannot read this machine's topology");
  }
  return topology;
}

// What this process may use: the cpuset is in the topology already, the affinity is not.
void KeepBound(hwloc_topology_t topology, hwloc_bitmap_t allowed) {
  hwloc_bitmap_copy(allowed, hwloc_topology_get_allowed_cpuset(topology));
  if (!hwloc_topology_is_thissystem(topology)) return;
  hwloc_bitmap_t bound = hwloc_bitmap_alloc();
  if (hwloc_get_cpubind(topology, bound, HWLOC_CPUBIND_THREAD) == 0) {
    hwloc_bitmap_and(allowed, allowed, bound);
  }
  hwloc_bitmap_free(bound);
}

CpuCore Describe(hwloc_obj_t object, hwloc_const_bitmap_t allowed) {
  CpuCore core;
  for (int cpu = hwloc_bitmap_first(object->cpuset); cpu >= 0;
       cpu = hwloc_bitmap_next(object->cpuset, cpu)) {
    if (hwloc_bitmap_isset(allowed, static_cast<unsigned>(cpu))) {
      core.cpus.push_back(static_cast<uint32_t>(cpu));
    }
  }
  const int numa = hwloc_bitmap_first(object->nodeset);
  core.numa = numa < 0 ? 0 : static_cast<uint32_t>(numa);
  return core;
}

std::vector<std::vector<uint32_t>> BindToCores(uint32_t workers,
                                               const std::vector<CpuCore>& cores) {
  std::vector<std::vector<uint32_t>> plan(workers);
  CADRE_CHECK(workers > 0 && cores.size() >= workers, workers, " workers, ", cores.size(),
              " cores");
  const size_t each = cores.size() / workers;
  for (uint32_t worker = 0; worker < workers; ++worker) {
    for (size_t i = worker * each; i < (worker + 1) * each; ++i) {
      plan[worker].insert(plan[worker].end(), cores[i].cpus.begin(), cores[i].cpus.end());
    }
    std::sort(plan[worker].begin(), plan[worker].end());
  }
  return plan;
}

std::vector<std::vector<uint32_t>> BindToNuma(uint32_t workers, const std::vector<CpuCore>& cores) {
  std::map<uint32_t, std::set<uint32_t>> by_numa;
  for (const CpuCore& core : cores) {
    by_numa[core.numa].insert(core.cpus.begin(), core.cpus.end());
  }
  std::vector<std::vector<uint32_t>> nodes;
  for (const auto& [numa, cpus] : by_numa) nodes.emplace_back(cpus.begin(), cpus.end());
  CADRE_CHECK(!nodes.empty(), "there is no NUMA node");
  std::vector<std::vector<uint32_t>> plan;
  for (uint64_t worker = 0; worker < workers; ++worker) {
    plan.push_back(nodes[worker * nodes.size() / workers]);
  }
  return plan;
}

}  // namespace

absl::StatusOr<std::vector<CpuCore>> FindCores(const std::string& synthetic) {
  absl::StatusOr<Topology> topology = LoadTopology(synthetic);
  if (!topology.ok()) return topology.status();
  hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
  KeepBound(topology->get(), allowed);
  // Virtual machines may show no cores, only CPUs.
  hwloc_obj_type_t type = HWLOC_OBJ_CORE;
  if (hwloc_get_nbobjs_by_type(topology->get(), type) <= 0) type = HWLOC_OBJ_PU;
  std::vector<CpuCore> cores;
  for (hwloc_obj_t object = hwloc_get_next_obj_by_type(topology->get(), type, nullptr);
       object != nullptr; object = hwloc_get_next_obj_by_type(topology->get(), type, object)) {
    CpuCore core = Describe(object, allowed);
    if (!core.cpus.empty()) cores.push_back(std::move(core));
  }
  hwloc_bitmap_free(allowed);
  if (cores.empty()) return absl::InternalError("hwloc found no CPU that this process may use");
  return cores;
}

absl::StatusOr<std::vector<std::vector<uint32_t>>> PlanBinding(
    absl::string_view bind, uint32_t workers, const std::vector<CpuCore>& cores,
    const std::vector<std::vector<uint32_t>>& gpu_cpus) {
  std::vector<std::vector<uint32_t>> plan(workers);
  if (bind.empty() || bind == "none" || workers == 0) return plan;
  if (bind == "core") {
    if (cores.size() < workers) {
      return absl::InvalidArgumentError(
          absl::StrCat("--bind core needs a core for each of ", workers, " workers, but only ",
                       cores.size(), " may be used here; start fewer or use --bind none"));
    }
    return BindToCores(workers, cores);
  }
  if (bind == "numa") {
    if (cores.empty()) return absl::InvalidArgumentError("--bind numa: no core may be used here");
    return BindToNuma(workers, cores);
  }
  if (bind == "gpu") {
    for (uint32_t i = 0; i < workers && i < gpu_cpus.size(); ++i) plan[i] = gpu_cpus[i];
    return plan;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--bind: '", bind, "' is unknown; expected none, core, numa or gpu"));
}

}  // namespace cadre::agent
