// The CPUs that this process may use and how workers share them, from hwloc, and the NVIDIA GPUs,
// from NVML, which is loaded at run time. Loading hwloc's topology costs milliseconds, and NVML
// tens of them if there is a driver: call these functions only if their answer is needed. Any
// thread.
#ifndef CADRE_AGENT_WORKERS_NODE_HARDWARE_H_
#define CADRE_AGENT_WORKERS_NODE_HARDWARE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre::agent {

// A core (its CPUs, hyperthreads included) and its NUMA node.
struct CpuCore {
  std::vector<uint32_t> cpus;
  uint32_t numa = 0;
};

// The cores of this machine that the process's affinity and cpuset allow, in hwloc's order: cores
// that share most are adjacent. `synthetic` is for tests: an hwloc description such as "numa:2
// core:4 pu:2" instead of the machine.
absl::StatusOr<std::vector<CpuCore>> FindCores(const std::string& synthetic = "");

// The CPUs of each local rank; an empty list means no binding. Values of `bind`:
//   none  no worker is bound
//   core  every worker has its own cores, an equal share of all
//   numa  every worker has a whole NUMA node, assigned in turn, in contiguous blocks of workers
//   gpu   every worker has the CPUs close to its GPU (`gpu_cpus`, by local rank)
// INVALID_ARGUMENT: an unknown value, or fewer cores than workers with `core`.
absl::StatusOr<std::vector<std::vector<uint32_t>>> PlanBinding(
    absl::string_view bind, uint32_t workers, const std::vector<CpuCore>& cores,
    const std::vector<std::vector<uint32_t>>& gpu_cpus = {});

struct Gpu {
  uint32_t index = 0;  // NVML's (by PCI address)
  std::string uuid;    // "GPU-..."
  std::string name;
  std::vector<uint32_t> cpus;                    // close to it; empty: unknown
  std::optional<uint32_t> minor = std::nullopt;  // of /dev/nvidiaN; nullopt: unknown
};

struct GpuList {
  std::vector<Gpu> gpus;
  // Why there are none; empty if there are some.
  std::string reason;
};

// In the order of CUDA_VISIBLE_DEVICES if that is set.
GpuList FindGpus();

// The load of all GPUs together.
struct GpuUse {
  uint32_t gpus = 0;
  float busy = 0;  // mean share of time in which a kernel ran, from 0 to 1
  uint64_t memory_used = 0;
  uint64_t memory_total = 0;
};

// Reads GpuUse repeatedly, opening the driver only once. Read() may block for ever if the driver
// hangs. One thread may use it at a time.
class GpuMeter {
 public:
  GpuMeter();
  ~GpuMeter();
  // Returns nullopt if there are no GPUs, or the driver does not report it.
  std::optional<GpuUse> Read();

 private:
  struct Open;
  bool tried_ = false;
  std::unique_ptr<Open> open_;
};

// The GPUs of `all` that CUDA_VISIBLE_DEVICES selects. Entries are indices or prefixes of UUIDs; as
// in CUDA, the first that names no GPU, or one already named, ends the list.
GpuList VisibleGpus(const std::vector<Gpu>& all, std::optional<absl::string_view> visible_devices);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_NODE_HARDWARE_H_
