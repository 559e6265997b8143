// Steps of batch jobs: which nodes of its batch job's allocation a step gets. A step is a job whose
// allocations are shares of those of its batch job, which has been given the nodes already, so that
// the scheduler (schedule.h) knows nothing of steps. Pure.
#ifndef CADRE_RENDEZVOUS_CLUSTER_STEPS_H_
#define CADRE_RENDEZVOUS_CLUSTER_STEPS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/spec.pb.h"
#include "proto/state.pb.h"
#include "rendezvous/cluster/agents.h"
#include "rendezvous/cluster/schedule.h"
#include "rendezvous/state/state.h"

namespace cadre::cluster {

inline bool IsStep(const state::Job& job) { return job.saved.submission().step_of() != 0; }

// Returns the batch job in whose allocation the step runs; null if it was dropped from the state.
const state::Job* BatchJobOf(const state::Job& step, const state::State& state);

// Whether the allocation is a share of its batch job's allocation on the node. When that one has
// ended before it, the share is one of the node's own until it ends too.
bool IsWithin(const v1::Part& allocation, const state::State& state);

// Returns why the step is to end: its batch job has ended, is being stopped, or begins again and
// does not know of the steps that its script has begun before. Empty: it goes on.
std::string WhyStepIsOver(const state::Job& step, const state::State& state);

// Checks that the user may begin a step with this spec in the batch job, whose id is `within`.
//   NOT_FOUND            there is no such job
//   PERMISSION_DENIED    it is another user's
//   FAILED_PRECONDITION  it is no batch job, has no nodes yet, is being stopped or has ended
//   INVALID_ARGUMENT     the step is larger than the job, or its spec is not one of a step
absl::Status CheckStep(const v1::JobSpec& spec, absl::string_view user, absl::string_view within,
                       const state::State& state);

// A share of the batch job's allocation `within` on the node.
struct StepShare {
  uint64_t within = 0;
  std::string node;
  Share share;
};

struct StepPlacement {
  // The nodes that the step lacks and gets now, all of them or none.
  std::vector<StepShare> place;
  // Why it gets none, to follow "waits for". Empty if it lacks none, or gets them.
  std::string waits_for;
  // It could not run even if its batch job had no other step: why.
  std::string impossible;
};

// `backed_off` has the nodes that the step does not get for the moment (StartBackoffs).
StepPlacement PlaceStep(const state::Job& step, const state::State& state, const Agents& agents,
                        const std::set<std::string>& backed_off);

// Returns OK if the steps' allocations are shares of those of their batch jobs, and together no
// more than these have, but for steps that overlap; and if each batch job has one for its script at
// most. INTERNAL names the allocation for which it does not hold.
absl::Status CheckStepAllocations(const state::State& state);

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_STEPS_H_
