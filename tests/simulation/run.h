// Many histories on several threads, one after the other from a first seed.
#ifndef CADRE_TESTS_SIMULATION_RUN_H_
#define CADRE_TESTS_SIMULATION_RUN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tests/simulation/history.h"

namespace cadre::simulation {

struct RunOptions {
  uint64_t first_seed = 1;
  uint64_t histories = 10000;
  int threads = 2;
  Mutation mutation = Mutation::kNone;
  // Told of every kToldEvery-th seed as it is begun, by any thread.
  std::function<void(uint64_t seed)> progress = [](uint64_t) {};
};

inline constexpr uint64_t kToldEvery = 10000;

struct RunReport {
  uint64_t histories = 0;
  uint64_t events = 0;
  absl::Duration virtual_time;
  Tally tally;
  // The first seed whose history broke a promise, and what is to be known of it: the promise, the
  // last events, and the command that shows it again.
  std::optional<uint64_t> broken_seed;
  std::string story;
};

RunReport RunMany(const RunOptions& options);

// One history with its events as text.
std::string TellHistory(uint64_t seed, Mutation mutation);

}  // namespace cadre::simulation

#endif  // CADRE_TESTS_SIMULATION_RUN_H_
