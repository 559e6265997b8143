// Which NVIDIA GPUs this process may use, asked of NVML, which is loaded at run time. Costs tens of
// milliseconds where there is a driver and nothing where there is none. Any thread.
#ifndef CADRE_AGENT_WORKERS_GPUS_H_
#define CADRE_AGENT_WORKERS_GPUS_H_

#include <cstdint>
#include <memory>
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

// How busy they are, all together.
struct GpuUse {
  uint32_t gpus = 0;
  float busy = 0;  // mean of the share of time in which something ran, from 0 to 1
  uint64_t memory_used = 0;
  uint64_t memory_total = 0;
};

// Reads that again and again: the driver is opened once. May wait for ever where the driver does.
// One thread.
class GpuMeter {
 public:
  GpuMeter();
  ~GpuMeter();
  // nullopt: there are none, or the driver does not tell.
  std::optional<GpuUse> Read();

 private:
  struct Open;
  bool tried_ = false;
  std::unique_ptr<Open> open_;
};

// What CUDA_VISIBLE_DEVICES leaves of `all`: entries are indices or the beginnings of UUIDs; as in
// CUDA, the first one that names no GPU, or a GPU again, ends the list.
GpuList VisibleGpus(const std::vector<Gpu>& all, std::optional<absl::string_view> visible_devices);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_GPUS_H_
