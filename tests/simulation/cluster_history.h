// One simulated history of a cluster's queue, with its machines and launchers, drawn from its seed.
// It runs the real core of the server and the real cores of the machines' agents and of the
// launchers that they start. Users submit jobs and batch jobs, several with the same name; scripts
// and users begin steps in batch jobs, more than these have room for; some depend on others, are
// held, are put back into the queue, or are cancelled. Nodes are drained, connections break, stall
// and are cut, and agents and the server are killed. Then the faults stop until every job has
// ended. One thread.
//
// After every step it checks that no part (a job's share of one node) runs twice at a time, that no
// CPU, no GPU and no memory of a machine is given twice, by the server and by the agent, that steps
// are on nodes of their batch jobs and end with them, that no job begins before it may and no
// script twice at a time, and that what the server orders to stop is gone in time; at the end, that
// every job is found by its id and its name, has ended, unless it is too large for the machines,
// and has left nothing behind.
#ifndef CADRE_TESTS_SIMULATION_CLUSTER_HISTORY_H_
#define CADRE_TESTS_SIMULATION_CLUSTER_HISTORY_H_

#include <cstdint>
#include <deque>
#include <string>

#include "tests/simulation/cluster_machine.h"

namespace cadre::simulation {

struct ClusterResult {
  // The first property that did not hold; empty if all held.
  std::string broken;
  // Equal hashes mean equal histories.
  uint64_t hash = 0;
  uint64_t events = 0;
  int succeeded = 0;
  int failed = 0;
  int cancelled = 0;
  int agents_lost = 0;
  int batch_jobs = 0;
  int requeued = 0;
  int steps = 0;
  // Steps that found no room at first, and nodes that a batch job had given back while its step
  // still ran there.
  int steps_waited = 0;
  int steps_outlived = 0;
  // The last events as text, if the caller asked to keep them.
  std::deque<std::string> lines;
};

ClusterResult RunClusterHistory(uint64_t seed, ClusterMutation mutation, bool keep_lines);

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_CLUSTER_HISTORY_H_
