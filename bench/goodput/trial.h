// One job of two nodes by two workers, with or without workers being killed. One thread.
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

// The command of one node. `dir` is the trial's, for all that is written.
using NodeCommand =
    std::function<std::vector<std::string>(int node, int port, const std::string& dir)>;

struct TrialOptions {
  absl::Duration length = absl::Minutes(5);
  // InfiniteDuration: nobody is killed.
  absl::Duration kill_every = absl::InfiniteDuration();
  // Of the ranks that are killed.
  unsigned seed = 1;
  // A node is killed in the place of a worker: its launcher and all that comes from it, at once.
  // One more node stands in reserve, and another one comes for it.
  bool kill_nodes = false;
};

struct TrialResult {
  // That the job is further than after its first step, at the end of the length.
  int64_t steps = 0;
  std::vector<Recovery> recoveries;  // one for each kill
  // From a failure until all of the next generation run, by Cadre's own timeline; empty elsewhere.
  std::vector<absl::Duration> launcher_part;
};

// The length counts from the end of the job's first step. UNAVAILABLE: no step came; what the
// launchers said goes to standard error.
absl::StatusOr<TrialResult> RunTrial(const NodeCommand& command, const TrialOptions& options);

}  // namespace cadre::bench

#endif  // CADRE_BENCH_GOODPUT_TRIAL_H_
