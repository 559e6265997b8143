// How many nodes a job could use when nothing else ran, for jobs that treat all nodes alike. Nodes
// with the same user and size count as one shape, so that this costs as much for a thousand nodes
// as for one of each kind. Pure.
#ifndef CADRE_RENDEZVOUS_CLUSTER_NODE_SHAPES_H_
#define CADRE_RENDEZVOUS_CLUSTER_NODE_SHAPES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "rendezvous/cluster/schedule.h"

namespace cadre::cluster {

class NodeShapes {
 public:
  // `remains`: shares that nobody gives back, since SIGKILL did not end what is left there.
  NodeShapes(const std::vector<ScheduleNode>& nodes, const std::vector<HeldShare>& remains);

  // Whether it has no nodes and refuses none.
  static bool TreatsAllAlike(const ScheduleJob& job) {
    return job.held.empty() && job.avoid.empty() && job.unfit.empty() && job.resting.empty();
  }
  // Of a job that treats all alike: on how many nodes it could run, and whether these are enough.
  size_t Fitting(const ScheduleJob& job) const;
  bool CanRun(const ScheduleJob& job) const;

 private:
  // User, CPUs, GPUs, and how many of these can become free.
  using Shape = std::tuple<std::string, uint32_t, uint32_t, int64_t, int64_t>;
  // Of open nodes.
  std::map<Shape, size_t> shapes_;
};

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_NODE_SHAPES_H_
