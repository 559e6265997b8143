// Which devices an allocation may open: the GPUs that it was given, and no other NVIDIA devices.
#ifndef CADRE_AGENT_CLUSTER_GPU_DEVICES_H_
#define CADRE_AGENT_CLUSTER_GPU_DEVICES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/supervisor/frames.h"
#include "agent/workers/node_hardware.h"

namespace cadre::agent {

// A GPU that a node gives to jobs.
struct NodeGpu {
  std::string name;    // in CUDA_VISIBLE_DEVICES
  uint32_t minor = 0;  // of /dev/nvidiaN
};

// Returns `count` of the GPUs that were found, or all of them, by index, which is how the cluster's
// core identifies them. If `count` exceeds the GPUs found, the missing ones are assumed to exist
// and are named by their index. Pure.
std::map<uint32_t, NodeGpu> GpusToGive(const std::vector<Gpu>& found,
                                       std::optional<uint32_t> count);

// A DRM device node (/dev/dri), which opens the same GPU as /dev/nvidiaN.
struct GraphicsNode {
  uint32_t major = 0;
  uint32_t minor = 0;
  uint32_t gpu_minor = 0;
};

struct GpuDevices {
  // Major numbers of /dev/nvidiaN and of the driver's control devices.
  std::set<uint32_t> majors;
  std::vector<GraphicsNode> graphics;
};

// Reads the numbers of NVIDIA's devices from /proc and /sys below `root` ("" except in tests). The
// device files of a GPU may be created at any later time, so they are identified by number and not
// searched for.
GpuDevices FindGpuDevices(const std::string& root = "");

// The rules for an allocation that was given the GPUs with these minor numbers. Pure.
std::vector<supervisor::DeviceRule> DeviceRules(const std::set<uint32_t>& granted,
                                                const GpuDevices& devices);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_GPU_DEVICES_H_
