// For tests that kill or stop a rank at random moments: the others must learn the cause in time and
// recover in place with the process that replaces the lost rank.
#ifndef CADRE_WORKER_RUNTIME_TESTING_LOST_RANK_MOMENTS_H_
#define CADRE_WORKER_RUNTIME_TESTING_LOST_RANK_MOMENTS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "base/time.h"
#include "cadre/status.h"
#include "cadre/worker.h"

namespace cadre::testing {

constexpr int kRanksOfAMoment = 3;

enum class RankFault { kKilled, kStopped };

// One generation of the world, from its start to the fault that ends it.
struct Moment {
  int number = 0;
  RankFault fault = RankFault::kKilled;
  int culprit = 0;
  // The fault comes `later` after the culprit has made `steps` steps.
  int64_t steps = 0;
  absl::Duration later;
  // A random bit with which the test chooses between two variants.
  bool coin = false;

  // The timeout for the communicators of that generation: short where a rank is stopped, because
  // only the timeout detects that.
  std::chrono::nanoseconds timeout() const;
  // The name for the communicators of that generation.
  std::string name() const;
  std::string ToString() const;
};

// How a generation ended for one rank.
struct RankEnd {
  // The error, which names the culprit.
  Status cause;
  // When this rank had learned of the fault and all of its own work had ended.
  MonoTime at;
};

// Runs one rank in one generation: it connects, and makes steps until one fails.
using LifeOfARank =
    std::function<RankEnd(Worker& worker, const Moment& moment, std::atomic<int64_t>& steps)>;

// Runs `count` moments drawn from `seed`. Every rank is a process that survives from moment to
// moment until it is the culprit. Prints how long the others took to learn of the fault.
void RunMoments(int count, uint32_t seed, const LifeOfARank& life);

}  // namespace cadre::testing

#endif  // CADRE_WORKER_RUNTIME_TESTING_LOST_RANK_MOMENTS_H_
