#include "agent/workers/gpus.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace cadre::agent {
namespace {

constexpr char kLibrary[] = "libnvidia-ml.so.1";
constexpr int kNvmlSuccess = 0;
constexpr size_t kTextSize = 96;    // NVML_DEVICE_NAME_V2_BUFFER_SIZE, _UUID_V2_
constexpr unsigned kCpuWords = 64;  // of 64 CPUs each

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

// nvmlUtilization_t and nvmlMemory_t.
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

Gpu Describe(const Nvml& nvml, unsigned index) {
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
  // Never closed: unloading the driver's library is not safe.
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
  for (unsigned i = 0; i < count; ++i) list.gpus.push_back(Describe(nvml, i));
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
// The driver stays open as its library does; the process ends soon.
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
    // Not told of a GPU that is cut in parts.
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
