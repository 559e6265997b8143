// A simulated history of a whole cluster, drawn from its seed: faults for a while, then none, until
// every agent has left and the server has nothing more to wait for. One history uses one thread;
// RunMany runs many of them, with consecutive seeds, on several.
#ifndef CADRE_TESTS_SIMULATION_HISTORY_H_
#define CADRE_TESTS_SIMULATION_HISTORY_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "tests/simulation/oracle.h"
#include "tests/simulation/plan.h"

namespace cadre::simulation {

struct HistoryResult {
  // The first property that did not hold; empty if all held.
  std::string broken;
  // A hash of all events: equal hashes mean equal histories.
  uint64_t hash = 0;
  uint64_t events = 0;
  // How long the history lasted in virtual time.
  absl::Duration lasted;
  Tally tally;
  // The last events as text, if the caller asked to keep them.
  std::deque<std::string> lines;
};

HistoryResult RunHistory(const Plan& plan, Mutation mutation, bool keep_lines);

struct RunOptions {
  uint64_t first_seed = 1;
  uint64_t histories = 10000;
  int threads = 2;
  Mutation mutation = Mutation::kNone;
  // Called with every kProgressEvery-th seed when its history begins, by any thread.
  std::function<void(uint64_t seed)> progress = [](uint64_t) {};
};

inline constexpr uint64_t kProgressEvery = 10000;

struct RunReport {
  uint64_t histories = 0;
  uint64_t events = 0;
  absl::Duration virtual_time;
  Tally tally;
  // The first seed whose history broke an invariant, and its report: the invariant, the last events
  // and the command that reproduces it.
  std::optional<uint64_t> broken_seed;
  std::string story;
};

RunReport RunMany(const RunOptions& options);

// Returns one history's events as text.
std::string HistoryText(uint64_t seed, Mutation mutation);

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_HISTORY_H_
