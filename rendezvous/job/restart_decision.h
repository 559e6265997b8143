// Decides what follows from the failure of a generation: another generation, after how long, or the
// end of the job, with which exit status. Pure.
#ifndef CADRE_RENDEZVOUS_JOB_RESTART_DECISION_H_
#define CADRE_RENDEZVOUS_JOB_RESTART_DECISION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/time.h"
#include "proto/failure.pb.h"
#include "rendezvous/state/policy.h"

namespace cadre::job {

// After so many free restarts of a submitted job a lost node counts like any failure. This is as
// often as Slurm jobs are requeued (launcher/slurm/batch_script.h).
inline constexpr uint32_t kFreeNodeLosses = 16;

struct RestartDecision {
  bool again = false;
  // Whether it counts against the budget.
  bool counted = false;
  absl::Duration delay = absl::ZeroDuration();
  // Why, or why not; empty if the failure says it all.
  std::string reason;
};

// How the cluster is concerned in the failure of a submitted job.
struct ClusterContext {
  bool submitted = false;
  // The root cause is the loss of a node, rather than the end of the job's launcher there.
  bool lost_node = false;
  // The restarts so far that did not count against the budget.
  uint32_t free_restarts = 0;
};

// How far the generation that ends has come.
struct GenerationRun {
  absl::Duration lasted = absl::ZeroDuration();
  // Of `lasted`, the time until all of its workers ran and had imported what they need, and the
  // first of them had shown progress, as far as that is known; all of it if they did not get that
  // far.
  absl::Duration start = absl::ZeroDuration();
  // The step that its slowest worker reported last, if the program counts its own steps.
  std::optional<uint64_t> step;
  // The furthest step of the generations before; 0 if none was reported.
  uint64_t furthest_step = 0;
};

// Whether the generation made real progress, so that its failure is not the one of the last start:
// it reached a step that no generation before had reached or, if the program reports none, ran for
// longer than its start took. A generation that was over within backoff_min did not.
bool MadeProgress(const GenerationRun& run, const state::Policy& policy);

// The restarts of a job so far.
struct RestartHistory {
  // The times of the restarts that counted against the budget, oldest first.
  absl::Span<const int64_t> counted_us = {};
  // How many of these followed since a generation last made real progress, the one that ends
  // included.
  uint32_t without_progress = 0;
};

// `root_cause` is absent if nothing failed (scale-up). `survivors` is the number of members that
// are not lost.
//
// The budget is one for the whole job, and every restart that counts takes one of it, however far
// the job has come in between, as with torchrun. The backoff is for repeated failures: it grows
// only with the restarts after which no generation made progress.
//
// An elastic job that loses a node and still has enough of them goes on without using its budget,
// since it was asked to live with fewer. So does a submitted job from which a node was taken, or
// whose node was lost: it did nothing wrong, and gets another one, unless its spec says no
// (restart.requeue). The latter ends after kFreeNodeLosses, since by then the job itself may be
// what kills its nodes. A job that was put back into the queue goes on in any case.
RestartDecision DecideRestart(const std::optional<v1::Failure>& root_cause,
                              const state::Policy& policy, const RestartHistory& history,
                              uint32_t survivors, MonoTime now, const ClusterContext& cluster = {});

// Whether later failures do not change the reason, and earlier ones did not follow from it: the
// user, a scheduler or timeouts.total ended the job, or it was put back into the queue.
bool IsDecisive(const v1::Failure& failure);

// Returns the exit status of `cadre run` for this failure.
int ExitStatusFor(const v1::Failure& failure);

}  // namespace cadre::job

#endif  // CADRE_RENDEZVOUS_JOB_RESTART_DECISION_H_
