// One simulated history of a cluster's queue, from its seed: the real core of the server, the real
// cores of the machines' agents and of the launchers they start. Jobs are submitted, cancelled and
// submitted again, nodes are drained, while connections break, stand still and are cut, and agents
// and the server die; then nothing goes wrong any more until every job has ended. One thread.
//
// After every step it is checked that no part runs twice at a time, no CPU and no GPU of a machine
// is given twice, and what the server is told to end is gone in time; at the end, that every job
// has ended and nothing of any is left.
#ifndef CADRE_TESTS_SIMULATION_CLUSTER_HISTORY_H_
#define CADRE_TESTS_SIMULATION_CLUSTER_HISTORY_H_

#include <cstdint>
#include <deque>
#include <string>

#include "tests/simulation/cluster_machine.h"

namespace cadre::simulation {

struct ClusterResult {
  // What did not hold; empty when everything did.
  std::string broken;
  // Equal hashes, equal histories.
  uint64_t hash = 0;
  uint64_t events = 0;
  int succeeded = 0;
  int failed = 0;
  int cancelled = 0;
  int agents_lost = 0;
  // The last that happened, when it was asked for.
  std::deque<std::string> lines;
};

ClusterResult RunClusterHistory(uint64_t seed, ClusterMutation mutation, bool keep_lines);

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_CLUSTER_HISTORY_H_
