// Which nodes a job takes of those that have room. Pure.
#ifndef CADRE_RENDEZVOUS_CLUSTER_NODE_CHOICE_H_
#define CADRE_RENDEZVOUS_CLUSTER_NODE_CHOICE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cadre::cluster {

// A node with room for the job.
struct NodeCandidate {
  // Of several that suit alike the lowest is taken.
  size_t node = 0;
  // Its value of the label that the job is spread over or packed by; empty without one.
  std::string group;
  // What would be left of it.
  int64_t spare_gpus = 0;
  int64_t spare_cpus = 0;
};

enum class NodeLayout {
  kTight,   // where least is left over
  kSpread,  // as evenly over the groups as it goes
  kPacked,  // of as few groups as it goes
};

// `count` of the candidates, or none if there are fewer. `held`: groups of the nodes it has.
std::vector<size_t> ChooseNodes(std::vector<NodeCandidate> candidates,
                                const std::vector<std::string>& held, NodeLayout layout,
                                size_t count);

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_NODE_CHOICE_H_
