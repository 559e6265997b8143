// Which devices a part of a job may open: the GPUs that it was given and no others of NVIDIA's.
#ifndef CADRE_AGENT_CLUSTER_GPU_DEVICES_H_
#define CADRE_AGENT_CLUSTER_GPU_DEVICES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/supervisor/frames.h"
#include "agent/workers/gpus.h"

namespace cadre::agent {

// A GPU that a node gives to jobs.
struct NodeGpu {
  std::string name;    // in CUDA_VISIBLE_DEVICES
  uint32_t minor = 0;  // of /dev/nvidiaN
};

// By index, which is how the cluster's core tells them apart: `count` of those that were found, or
// all of them. More than were found are believed to be there, and called by their index. Pure.
std::map<uint32_t, NodeGpu> GpusToGive(const std::vector<Gpu>& found,
                                       std::optional<uint32_t> count);

// A node of the graphics system (/dev/dri), which opens the same GPU as /dev/nvidiaN.
struct GraphicsNode {
  uint32_t major = 0;
  uint32_t minor = 0;
  uint32_t gpu_minor = 0;
};

struct GpuDevices {
  // Of /dev/nvidiaN and the driver's control nodes.
  std::set<uint32_t> majors;
  std::vector<GraphicsNode> graphics;
};

// What the system below `root` ("" but for a test) says of NVIDIA's devices. Nodes of a GPU may be
// made at any time later, so that they are known by their numbers and not looked for.
GpuDevices FindGpuDevices(const std::string& root = "");

// For a part that was given the GPUs of these minor numbers. Pure.
std::vector<supervisor::DeviceRule> DeviceRules(const std::set<uint32_t>& granted,
                                                const GpuDevices& devices);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_GPU_DEVICES_H_
