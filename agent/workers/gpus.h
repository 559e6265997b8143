// Which NVIDIA GPUs this process may use, asked of NVML, which is loaded at run time. Costs tens of
// milliseconds where there is a driver and nothing where there is none. Any thread.
#ifndef CADRE_AGENT_WORKERS_GPUS_H_
#define CADRE_AGENT_WORKERS_GPUS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cadre::agent {

struct Gpu {
  uint32_t index = 0;  // as NVML counts (by PCI address)
  std::string uuid;    // "GPU-..."
  std::string name;
  std::vector<uint32_t> cpus;                    // close to it; empty: unknown
  std::optional<uint32_t> minor = std::nullopt;  // of /dev/nvidiaN; nullopt: unknown
};

struct GpuList {
  std::vector<Gpu> gpus;
  // Why there are none; empty when there are.
  std::string reason;
};

// In the order of CUDA_VISIBLE_DEVICES where that is set.
GpuList FindGpus();

// What CUDA_VISIBLE_DEVICES leaves of `all`: entries are indices or the beginnings of UUIDs; as in
// CUDA, the first one that names no GPU, or a GPU again, ends the list.
GpuList VisibleGpus(const std::vector<Gpu>& all, std::optional<absl::string_view> visible_devices);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_GPUS_H_
