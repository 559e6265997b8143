// Which jobs of the queue may begin at all, whatever nodes are free: not one that is held, whose
// time to begin has not come, that depends on other jobs, or whose array has as many elements
// running as it may. Pure.
#ifndef CADRE_RENDEZVOUS_CLUSTER_ELIGIBILITY_H_
#define CADRE_RENDEZVOUS_CLUSTER_ELIGIBILITY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/time.h"
#include "proto/spec.pb.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/core_config.h"

namespace cadre::cluster {

// Why a job may not begin now.
struct NotEligible {
  // To follow "waits for": "job 12 to succeed".
  std::string reason;
  // Slurm's word for it: "Dependency".
  std::string word;
  // When that may have passed without anything else happening; host time.
  MonoTime until = MonoTime::Never();
  // It never passes: the job on which it depends has ended in another way.
  bool never = false;
};

// How many elements of each array have nodes, by the arrays' ids. `begun`: the jobs that have.
using RunningElements = std::map<uint64_t, uint32_t>;
RunningElements CountRunningElements(const state::State& state, const std::set<std::string>& begun);

// Returns nothing if the queued job may begin at host time `now`.
std::optional<NotEligible> WhyNotEligible(const state::Job& job, const state::State& state,
                                          const RunningElements& running, const CoreConfig& config,
                                          MonoTime now);

// Checks the dependencies of a job that is about to be submitted. INVALID_ARGUMENT, NOT_FOUND.
absl::Status CheckDependencies(const v1::QueueOptions& queue, const state::State& state);

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_ELIGIBILITY_H_
