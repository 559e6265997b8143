// For tests that kill or stop a rank at random moments: the others must have the cause in time, and
// go on in place with who has come in its stead.
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

// One generation of the world, from its forming to the fault in it.
struct Moment {
  int number = 0;
  RankFault fault = RankFault::kKilled;
  int culprit = 0;
  // When: after so many steps of the culprit, and so much later.
  int64_t steps = 0;
  absl::Duration later;
  // For the test to do one thing or another.
  bool coin = false;

  // For the communicators of that generation: short where a rank is stopped, which nothing else
  // tells.
  std::chrono::nanoseconds timeout() const;
  // Names them.
  std::string name() const;
  std::string ToString() const;
};

// How a rank's part in a generation ended.
struct RankEnd {
  // Names the culprit.
  Status cause;
  // When this rank knew that something is wrong, and nothing of it ran any more.
  MonoTime at;
};

// One rank in one generation: connects, and makes steps until one fails.
using LifeOfARank =
    std::function<RankEnd(Worker& worker, const Moment& moment, std::atomic<int64_t>& steps)>;

// Runs `count` moments from `seed`; every rank is a process, which goes on from moment to moment
// until it is the culprit. Prints how long the others took.
void RunMoments(int count, uint32_t seed, const LifeOfARank& life);

}  // namespace cadre::testing

#endif  // CADRE_WORKER_RUNTIME_TESTING_LOST_RANK_MOMENTS_H_
