// Runs one job of two nodes with two workers each, with or without kills. One thread.
#ifndef CADRE_BENCH_GOODPUT_TRIAL_H_
#define CADRE_BENCH_GOODPUT_TRIAL_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/goodput/ledger.h"

namespace cadre::bench {

inline constexpr int kNodes = 2;
inline constexpr int kWorkersPerNode = 2;

// Returns the command of one node. `dir` is the directory of the trial, for all output.
using NodeCommand =
    std::function<std::vector<std::string>(int node, int port, const std::string& dir)>;

struct TrialOptions {
  absl::Duration length = absl::Minutes(5);
  // InfiniteDuration: nothing is killed.
  absl::Duration kill_every = absl::InfiniteDuration();
  // The seed by which the killed ranks are drawn.
  unsigned seed = 1;
  // Kills a node instead of a worker: its launcher and all of its processes at once. The job has
  // one more node as a spare, and another node comes for the killed one.
  bool kill_nodes = false;
};

struct TrialResult {
  // The steps that the job made within the length, after its first step.
  int64_t steps = 0;
  std::vector<Recovery> recoveries;  // one for each kill
  // The times from a failure until all workers of the next generation run, from Cadre's timeline;
  // empty for other launchers.
  std::vector<absl::Duration> launcher_part;
};

// The length counts from the end of the job's first step. UNAVAILABLE: the job made no step; the
// output of the launchers is copied to standard error.
absl::StatusOr<TrialResult> RunTrial(const NodeCommand& command, const TrialOptions& options);

}  // namespace cadre::bench

#endif  // CADRE_BENCH_GOODPUT_TRIAL_H_
