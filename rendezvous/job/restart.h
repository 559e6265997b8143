// Whether a stopped generation is followed by another, after how long, or why not. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_RESTART_H_
#define CADRE_RENDEZVOUS_JOB_RESTART_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/time.h"
#include "proto/failure.pb.h"
#include "rendezvous/state/policy.h"

namespace cadre::job {

// Restarts of a submitted job after which a lost node counts like any failure. As often as a job of
// Slurm's goes back into the queue (launcher/slurm/batch_script.h).
inline constexpr uint32_t kFreeNodeLosses = 16;

struct RestartDecision {
  bool again = false;
  // It counts against the budget.
  bool counted = false;
  absl::Duration delay = absl::ZeroDuration();
  // Why, or why not; empty where the failure says it all.
  std::string reason;
};

// What a cluster has to do with a job.
struct OfCluster {
  bool submitted = false;
  // The root cause is that it lost a node, and not the job's launcher there.
  bool lost_node = false;
  // Restarts that cost the job nothing.
  uint32_t free_restarts = 0;
};

// How far the generation that ends has come.
struct Course {
  absl::Duration lasted = absl::ZeroDuration();
  // Of that, until all of its workers ran and had imported what they need, and the first of them
  // had shown progress, as far as any of this is known; all of it where they did not come so far.
  absl::Duration start = absl::ZeroDuration();
  // The step that its slowest worker reported last, of a program that counts its own steps.
  std::optional<uint64_t> step;
  // The furthest step of the generations before; 0: none told any.
  uint64_t furthest_step = 0;
};

// Whether it got on, so that what failed is not what failed at the last start: it came to a step
// to which no generation before had come or, where the program tells none, ran for longer than its
// start took. One that was over within backoff_min did not.
bool GotOn(const Course& course, const state::Policy& policy);

// What a job has behind it.
struct Behind {
  // The moments of the restarts that counted so far, oldest first.
  absl::Span<const int64_t> counted_us = {};
  // Of these, how many followed since a generation got on; the one that ends counts among them.
  uint32_t in_vain = 0;
};

// `root_cause` is absent where nothing failed (scale-up). `survivors` are the members that are
// left.
//
// The budget is one for the whole job, and every restart that counts takes one of it, however far
// the job has come in between, as with torchrun. The backoff is for what fails again and again: it
// grows with the restarts in vain alone.
//
// An elastic job that loses a node and still has enough of them goes on without touching its
// budget: it was asked to live with fewer. So does a job of the cluster from which a node was
// taken, or whose node was lost: it did nothing wrong, and gets another one. The latter ends where
// it may be the job that kills its nodes: after kFreeNodeLosses.
RestartDecision DecideRestart(const std::optional<v1::Failure>& root_cause,
                              const state::Policy& policy, const Behind& behind, uint32_t survivors,
                              MonoTime now, const OfCluster& cluster = {});

// The user, a scheduler or the clock has the last word: nothing that happens afterwards changes the
// reason, and what failed before did not follow from it.
bool HasLastWord(const v1::Failure& failure);

// What `cadre run` exits with on account of this failure.
int ExitStatusFor(const v1::Failure& failure);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_RESTART_H_
