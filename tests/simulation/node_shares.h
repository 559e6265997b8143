// The shares that allocations have of one node, as the server or the node's agent counts them, and
// whether any of it is given twice. Pure.
#ifndef CADRE_TESTS_SIMULATION_NODE_SHARES_H_
#define CADRE_TESTS_SIMULATION_NODE_SHARES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/cluster.pb.h"

namespace cadre::simulation {

struct NodeSize {
  uint32_t cpus = 0;
  uint32_t gpus = 0;
  uint64_t memory = 0;  // 0: it is not counted
};

struct NodeShare {
  v1::Part part;
  // A step that may use at the same time what other steps of its batch job use.
  bool overlaps = false;
  // Of a step: the allocation of its batch job, which may have ended; nullopt if it is not known.
  std::optional<v1::Part> batch;
  // Indices of its GPUs; nullopt where only their number is known.
  std::optional<std::vector<uint32_t>> gpus;
};

// Returns what is given twice; empty if nothing is. Steps use a share of their batch job's
// allocation, and together no more than it has, except those that overlap. Once it has ended, what
// its steps use is theirs.
std::string WhatIsGivenTwice(const NodeSize& node, const std::vector<NodeShare>& shares);

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_NODE_SHARES_H_
