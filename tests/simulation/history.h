// One simulated history of a whole cluster, from its seed: faults for a while, then none, until
// every agent has left and the server has nothing more to wait for. One thread.
#ifndef CADRE_TESTS_SIMULATION_HISTORY_H_
#define CADRE_TESTS_SIMULATION_HISTORY_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/time/time.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/plan.h"

namespace cadre::simulation {

struct HistoryResult {
  // What did not hold; empty when everything did.
  std::string broken;
  // Of all that happened: equal hashes, equal histories.
  uint64_t hash = 0;
  uint64_t events = 0;
  // Virtual time.
  absl::Duration lasted;
  Tally tally;
  // The last that happened, when it was asked for.
  std::deque<std::string> lines;
};

HistoryResult RunHistory(const Plan& plan, Mutation mutation, bool keep_lines);

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_HISTORY_H_
