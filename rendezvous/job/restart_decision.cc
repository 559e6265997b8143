#include "rendezvous/job/restart_decision.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "base/text.h"

namespace cadre::job {
namespace {

RestartDecision Never(std::string reason) { return {false, false, {}, std::move(reason)}; }

// Whether a user or a scheduler ended the job on all nodes: nothing is retried.
bool IsOfWholeJob(const v1::Failure& failure) {
  return failure.node().empty() &&
         (failure.cause() == v1::CANCELLED || failure.cause() == v1::PREEMPTED);
}

// Whether a node went away, by itself or on purpose, and no worker failed.
bool IsNodeGone(const v1::Failure& failure) {
  if (failure.cause() == v1::NODE_LOST) return true;
  // A single worker may be preempted too; then its exit is set.
  if (failure.cause() == v1::PREEMPTED) return !failure.has_exit() && !IsOfWholeJob(failure);
  // The failure of a cancelled job names no node; that of a node that was told to leave does.
  return failure.cause() == v1::CANCELLED && !failure.node().empty();
}

bool IsFinal(v1::FailureCause cause) {
  switch (cause) {
    case v1::EXEC_FAILED:
    case v1::LOAD_FAILED:
    case v1::CANCELLED:
    case v1::JOIN_TIMEOUT:
    case v1::TOTAL_TIMEOUT:
      return true;
    default:
      return false;
  }
}

absl::Duration Backoff(const state::Policy& policy, size_t restarts) {
  if (restarts == 0) return absl::ZeroDuration();
  absl::Duration delay = policy.backoff_min;
  for (size_t i = 1; i < restarts && delay < policy.backoff_max; ++i) delay *= 2;
  return std::min(delay, policy.backoff_max);
}

}  // namespace

bool IsDecisive(const v1::Failure& failure) {
  return failure.cause() == v1::TOTAL_TIMEOUT || failure.cause() == v1::REQUEUED ||
         IsOfWholeJob(failure);
}

bool MadeProgress(const GenerationRun& run, const state::Policy& policy) {
  if (run.lasted < policy.backoff_min) return false;
  // Workers that go on in their processes repeat one step only, and their start is too short to
  // matter.
  if (policy.in_place) return true;
  if (run.step.has_value()) return *run.step > run.furthest_step;
  // The program reports steps, but reported none in this generation.
  if (run.furthest_step > 0) return false;
  return run.lasted - run.start > run.start;
}

RestartDecision DecideRestart(const std::optional<v1::Failure>& root_cause,
                              const state::Policy& policy, const RestartHistory& history,
                              uint32_t survivors, MonoTime now, const ClusterContext& cluster) {
  if (!root_cause.has_value()) return {true, false, {}, "nothing failed"};
  const v1::Failure& failure = *root_cause;
  if (failure.cause() == v1::REQUEUED) return {true, false, {}, "it was put back into the queue"};
  if (IsNodeGone(failure) && policy.min < policy.max && policy.SizeFor(survivors) != 0) {
    return {
        true, false, {}, absl::StrCat("an elastic job goes on with ", Count(survivors, "node"))};
  }
  const bool taken_away = failure.cause() == v1::PREEMPTED && IsNodeGone(failure);
  if (cluster.submitted && !policy.requeue && (taken_away || cluster.lost_node)) {
    return Never("the job was submitted with --no-requeue (restart.requeue)");
  }
  if (cluster.submitted && taken_away) {
    return {true, false, {}, "its node was taken away, which costs no restart"};
  }
  if (cluster.submitted && cluster.lost_node && cluster.free_restarts < kFreeNodeLosses) {
    return {true, false, {}, "its node is lost, which costs no restart"};
  }
  if (IsFinal(failure.cause()) || IsOfWholeJob(failure)) return Never("");
  if (policy.restart_max == 0) return Never("");
  const v1::WorkerExit& exit = failure.exit();
  if (failure.has_exit() && exit.signal() == 0 && exit.exec_errno() == 0 &&
      policy.never_exit_codes.count(exit.exit_code()) != 0) {
    return Never(absl::StrCat("status ", exit.exit_code(), " is never restarted"));
  }
  if (policy.retried.count(failure.cause()) == 0) {
    return Never(absl::StrCat("restart.on does not list ",
                              absl::AsciiStrToLower(v1::FailureCause_Name(failure.cause()))));
  }
  size_t used = 0;
  for (const int64_t at_us : history.counted_us) {
    if (now - MonoTime::FromMicros(at_us) <= policy.restart_window) ++used;
  }
  if (used >= policy.restart_max) {
    std::string reason = absl::StrCat("restarts used: ", used, " of ", policy.restart_max);
    if (policy.restart_window != absl::InfiniteDuration()) {
      absl::StrAppend(&reason, " within ", ShortDuration(policy.restart_window));
    }
    return Never(std::move(reason));
  }
  return {true, true, Backoff(policy, std::min<size_t>(used, history.without_progress)),
          absl::StrCat("restart ", used + 1, " of ", policy.restart_max)};
}

int ExitStatusFor(const v1::Failure& failure) {
  const v1::WorkerExit& exit = failure.exit();
  switch (failure.cause()) {
    case v1::PREEMPTED:
      if (exit.signal() > 0) return kExitSignalBase + exit.signal();
      return kExitTryLater;
    case v1::NODE_LOST:
    case v1::JOIN_TIMEOUT:
      return kExitTryLater;
    case v1::HANG:
    case v1::START_TIMEOUT:
    case v1::TOTAL_TIMEOUT:
      return kExitTimedOut;
    case v1::CANCELLED:
      return kExitSignalBase + (exit.signal() > 0 ? exit.signal() : SIGINT);
    case v1::EXEC_FAILED:
      // The port where the ranks were to meet is taken: the program is fine, and may run on this
      // node later.
      if (exit.exec_errno() == EADDRINUSE) return kExitUnavailable;
      return exit.exec_errno() == ENOENT ? kExitNotFound : kExitNotExecutable;
    default:
      break;
  }
  if (exit.signal() > 0) return kExitSignalBase + exit.signal();
  // A failure never looks like success: a worker may be counted as failed though it exited with 0.
  return exit.exit_code() != 0 ? exit.exit_code() & 0xff : 1;
}

}  // namespace cadre::job
