#include "agent/workers/node_hardware.h"

#include <dlfcn.h>
#include <errno.h>
#include <hwloc.h>
#include <stdlib.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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
  // Only cores and memory are needed: discovering caches and devices takes most of the time.
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

// The CPUs this process may use: the topology respects the cpuset, but not the affinity.
void RestrictToAffinity(hwloc_topology_t topology, hwloc_bitmap_t allowed) {
  hwloc_bitmap_copy(allowed, hwloc_topology_get_allowed_cpuset(topology));
  if (!hwloc_topology_is_thissystem(topology)) return;
  hwloc_bitmap_t bound = hwloc_bitmap_alloc();
  if (hwloc_get_cpubind(topology, bound, HWLOC_CPUBIND_THREAD) == 0) {
    hwloc_bitmap_and(allowed, allowed, bound);
  }
  hwloc_bitmap_free(bound);
}

CpuCore DescribeCore(hwloc_obj_t object, hwloc_const_bitmap_t allowed) {
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
  RestrictToAffinity(topology->get(), allowed);
  // Virtual machines may show no cores, only CPUs.
  hwloc_obj_type_t type = HWLOC_OBJ_CORE;
  if (hwloc_get_nbobjs_by_type(topology->get(), type) <= 0) type = HWLOC_OBJ_PU;
  std::vector<CpuCore> cores;
  for (hwloc_obj_t object = hwloc_get_next_obj_by_type(topology->get(), type, nullptr);
       object != nullptr; object = hwloc_get_next_obj_by_type(topology->get(), type, object)) {
    CpuCore core = DescribeCore(object, allowed);
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
      return absl::InvalidArgumentError(absl::StrCat(
          "placement.bind=core needs a core for each of ", workers, " workers, but only ",
          cores.size(), " may be used here; start fewer, or set placement.bind=none"));
    }
    return BindToCores(workers, cores);
  }
  if (bind == "numa") {
    if (cores.empty())
      return absl::InvalidArgumentError("placement.bind=numa: no core may be used here");
    return BindToNuma(workers, cores);
  }
  if (bind == "gpu") {
    for (uint32_t i = 0; i < workers && i < gpu_cpus.size(); ++i) plan[i] = gpu_cpus[i];
    return plan;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("placement.bind: '", bind, "' is unknown; expected none, core, numa or gpu"));
}

namespace {

constexpr char kLibrary[] = "libnvidia-ml.so.1";
constexpr int kNvmlSuccess = 0;
constexpr size_t kTextSize = 96;    // NVML_DEVICE_NAME_V2_BUFFER_SIZE, _UUID_V2_
constexpr unsigned kCpuWords = 64;  // words of 64 CPUs each

// The part of NVML's stable interface that is used here.
struct Nvml {
  int (*init)();
  int (*shutdown)();
  int (*count)(unsigned*);
  int (*handle)(unsigned, void**);
  int (*uuid)(void*, char*, unsigned);
  int (*name)(void*, char*, unsigned);
  int (*minor)(void*, unsigned*);
  int (*cpu_affinity)(void*, unsigned, unsigned long*);
  const char* (*error)(int);
};

// These have the layout of NVML's nvmlUtilization_t and nvmlMemory_t.
struct Rates {
  unsigned gpu;
  unsigned memory;
};
struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

template <typename Function>
bool Load(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool LoadAll(void* library, Nvml& nvml) {
  return Load(library, "nvmlInit_v2", nvml.init) && Load(library, "nvmlShutdown", nvml.shutdown) &&
         Load(library, "nvmlDeviceGetCount_v2", nvml.count) &&
         Load(library, "nvmlDeviceGetHandleByIndex_v2", nvml.handle) &&
         Load(library, "nvmlDeviceGetUUID", nvml.uuid) &&
         Load(library, "nvmlDeviceGetName", nvml.name) &&
         Load(library, "nvmlDeviceGetMinorNumber", nvml.minor) &&
         Load(library, "nvmlDeviceGetCpuAffinity", nvml.cpu_affinity) &&
         Load(library, "nvmlErrorString", nvml.error);
}

Gpu DescribeGpu(const Nvml& nvml, unsigned index) {
  Gpu gpu;
  gpu.index = index;
  void* device = nullptr;
  if (nvml.handle(index, &device) != kNvmlSuccess) return gpu;
  char text[kTextSize] = "";
  if (nvml.uuid(device, text, sizeof(text)) == kNvmlSuccess) gpu.uuid = text;
  if (nvml.name(device, text, sizeof(text)) == kNvmlSuccess) gpu.name = text;
  unsigned minor = 0;
  if (nvml.minor(device, &minor) == kNvmlSuccess) gpu.minor = minor;
  unsigned long words[kCpuWords] = {};
  if (nvml.cpu_affinity(device, kCpuWords, words) == kNvmlSuccess) {
    for (uint32_t cpu = 0; cpu < kCpuWords * 64; ++cpu) {
      if ((words[cpu / 64] >> (cpu % 64)) & 1) gpu.cpus.push_back(cpu);
    }
  }
  return gpu;
}

GpuList AllGpus() {
  // Never closed, because unloading the driver's library is not safe.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return {{}, absl::StrCat("no NVIDIA driver is installed (", kLibrary, " was not found)")};
  }
  Nvml nvml;
  if (!LoadAll(library, nvml)) {
    return {{}, absl::StrCat(kLibrary, " is too old: a function is missing")};
  }
  int error = nvml.init();
  if (error != kNvmlSuccess) {
    return {{}, absl::StrCat("the NVIDIA driver does not answer: ", nvml.error(error))};
  }
  GpuList list;
  unsigned count = 0;
  error = nvml.count(&count);
  if (error != kNvmlSuccess) {
    list.reason = absl::StrCat("the NVIDIA driver cannot count GPUs: ", nvml.error(error));
  } else if (count == 0) {
    list.reason = "the NVIDIA driver knows no GPU";
  }
  for (unsigned i = 0; i < count; ++i) list.gpus.push_back(DescribeGpu(nvml, i));
  nvml.shutdown();
  return list;
}

const Gpu* Named(const std::vector<Gpu>& all, absl::string_view entry) {
  uint32_t index = 0;
  const bool is_index = absl::SimpleAtoi(entry, &index);
  for (const Gpu& gpu : all) {
    if (is_index ? gpu.index == index
                 : absl::StartsWith(entry, "GPU-") && absl::StartsWith(gpu.uuid, entry)) {
      return &gpu;
    }
  }
  return nullptr;
}

}  // namespace

GpuList VisibleGpus(const std::vector<Gpu>& all, std::optional<absl::string_view> visible_devices) {
  if (!visible_devices) return {all, ""};
  GpuList list;
  std::set<uint32_t> seen;
  for (const absl::string_view word : absl::StrSplit(*visible_devices, ',')) {
    const Gpu* gpu = Named(all, absl::StripAsciiWhitespace(word));
    if (gpu == nullptr || !seen.insert(gpu->index).second) break;
    list.gpus.push_back(*gpu);
  }
  if (list.gpus.empty()) {
    list.reason = absl::StrCat("CUDA_VISIBLE_DEVICES='", *visible_devices, "' shows none of the ",
                               all.size(), " GPUs of this node");
  }
  return list;
}

struct GpuMeter::Open {
  int (*rates)(void*, Rates*);
  int (*memory)(void*, Memory*);
  std::vector<void*> devices;
};

GpuMeter::GpuMeter() = default;
// The driver's library stays open, because the process ends soon.
GpuMeter::~GpuMeter() = default;

std::optional<GpuUse> GpuMeter::Read() {
  if (!std::exchange(tried_, true)) {
    const GpuList found = FindGpus();
    void* library = found.gpus.empty() ? nullptr : dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    Nvml nvml;
    auto open = std::make_unique<Open>();
    if (library == nullptr || !LoadAll(library, nvml) ||
        !Load(library, "nvmlDeviceGetUtilizationRates", open->rates) ||
        !Load(library, "nvmlDeviceGetMemoryInfo", open->memory) || nvml.init() != kNvmlSuccess) {
      return std::nullopt;
    }
    for (const Gpu& gpu : found.gpus) {
      void* device = nullptr;
      if (nvml.handle(gpu.index, &device) == kNvmlSuccess) open->devices.push_back(device);
    }
    open_ = std::move(open);
  }
  if (open_ == nullptr) return std::nullopt;
  GpuUse use;
  for (void* device : open_->devices) {
    Rates rates = {};
    Memory memory = {};
    // The driver does not report the rates of a partitioned GPU (MIG).
    if (open_->rates(device, &rates) != kNvmlSuccess ||
        open_->memory(device, &memory) != kNvmlSuccess) {
      continue;
    }
    ++use.gpus;
    use.busy += static_cast<float>(rates.gpu) / 100;
    use.memory_used += memory.used;
    use.memory_total += memory.total;
  }
  if (use.gpus == 0) return std::nullopt;
  use.busy /= static_cast<float>(use.gpus);
  return use;
}

GpuList FindGpus() {
  GpuList all = AllGpus();
  if (all.gpus.empty()) return all;
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  return VisibleGpus(all.gpus,
                     visible == nullptr ? std::nullopt : std::optional<absl::string_view>(visible));
}

}  // namespace cadre::agent
