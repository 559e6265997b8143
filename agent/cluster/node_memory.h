// How much memory this node has for jobs.
#ifndef CADRE_AGENT_CLUSTER_NODE_MEMORY_H_
#define CADRE_AGENT_CLUSTER_NODE_MEMORY_H_

#include <cstdint>
#include <string>

namespace cadre::agent {

// Returns the machine's memory in bytes, or the lowest limit of this process's cgroup and of those
// above it, if that is less. It is rounded down to 256 MiB, because machines of one kind differ by
// a few MiB, and the scheduler treats equal nodes as one. 0: /proc does not tell. Reads /proc and
// /sys below `root` ("" except in tests).
uint64_t FindNodeMemory(const std::string& root = "");

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_NODE_MEMORY_H_
