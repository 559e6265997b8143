// Whether a job can run on a node, whatever else runs there, and what people are told of nodes on
// which it cannot. Pure.
#ifndef CADRE_RENDEZVOUS_CLUSTER_SUITABILITY_H_
#define CADRE_RENDEZVOUS_CLUSTER_SUITABILITY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/cluster/schedule.h"

namespace cadre::cluster {

// What the job takes of an empty node; nothing where the node is too small for a worker. A worker
// takes a CPU unless the job says more.
std::optional<Share> ShareOf(const ScheduleJob& job, const ScheduleNode& node);

// The smallest number of nodes it runs on.
uint32_t LeastNodes(const ScheduleJob& job);

// It is for other users, does not run root's jobs, or the job has tried it in vain. That does not
// pass.
bool IsBarred(const ScheduleJob& job, const ScheduleNode& node);

// "4 CPUs and 1 GPU".
std::string ShareText(const Share& share);

// What a job waits for that lacks so many nodes beside those that it has, of which `fitting` are
// there: "1 node with 4 CPUs: 0 of 3 can take it; 2 are too small (the largest has 2 CPUs), n2 is
// drained".
std::string MissingText(const ScheduleJob& job, size_t lacks, size_t fitting,
                        const std::vector<ScheduleNode>& nodes);

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_SUITABILITY_H_
