#include "agent/core/worker_state.h"

#include <errno.h>
#include <signal.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "rpc/program_error.h"
#include "rpc/worker_end.h"

namespace cadre::agent {
namespace {

constexpr WorkerState kStarting = WorkerState::kStarting, kRunning = WorkerState::kRunning,
                      kCanRejoin = WorkerState::kCanRejoin, kWaits = WorkerState::kWaits,
                      kGaveUp = WorkerState::kGaveUp, kLate = WorkerState::kLate,
                      kUnkillable = WorkerState::kUnkillable, kExited = WorkerState::kExited;

// A worker may report `can rejoin` or `waits` before the supervisor reports that it runs.
// States kLate, kUnkillable and kExited ignore such reports because they come too late.
// clang-format off
constexpr WorkerState kNext[kWorkerStates][kWorkerEvents] = {
    //                  runs         can rejoin   cannot       waits        told         is back      too late     unkillable   exits
    /* kStarting   */ {kRunning,    kCanRejoin,  kStarting,   kWaits,      kStarting,   kStarting,   kLate,       kUnkillable, kExited},
    /* kRunning    */ {kRunning,    kCanRejoin,  kRunning,    kWaits,      kRunning,    kRunning,    kLate,       kUnkillable, kExited},
    /* kCanRejoin  */ {kCanRejoin,  kCanRejoin,  kRunning,    kWaits,      kCanRejoin,  kCanRejoin,  kLate,       kUnkillable, kExited},
    /* kWaits      */ {kWaits,      kWaits,      kWaits,      kWaits,      kGaveUp,     kWaits,      kWaits,      kUnkillable, kExited},
    /* kGaveUp     */ {kGaveUp,     kGaveUp,     kGaveUp,     kGaveUp,     kGaveUp,     kWaits,      kGaveUp,     kUnkillable, kExited},
    /* kLate       */ {kLate,       kLate,       kLate,       kLate,       kLate,       kLate,       kLate,       kUnkillable, kExited},
    /* kUnkillable */ {kUnkillable, kUnkillable, kUnkillable, kUnkillable, kUnkillable, kUnkillable, kUnkillable, kUnkillable, kExited},
    /* kExited     */ {kExited,     kExited,     kExited,     kExited,     kExited,     kExited,     kExited,     kExited,     kExited},
};
// clang-format on

}  // namespace

WorkerState Next(WorkerState state, WorkerEvent event) {
  return kNext[static_cast<int>(state)][static_cast<int>(event)];
}

void Worker::Progressed(MonoTime at) {
  if (progressed_at.has_value() && at > *progressed_at) {
    const absl::Duration took = at - *progressed_at;
    usual_interval =
        usual_interval == absl::ZeroDuration() ? took : (3 * usual_interval + took) / 4;
  }
  progressed_at = std::max(progressed_at.value_or(MonoTime()), at);
}

v1::NodeMessage ExitedMessage(const Worker& worker) {
  CADRE_CHECK(worker.exited(), "the worker has not exited");
  v1::NodeMessage message;
  *message.mutable_worker_exited() = worker.exit;
  return message;
}

v1::NodeMessage UnkillableMessage(const Worker& worker) {
  CADRE_CHECK(worker.unkillable.has_value(),
              "no process of the worker is known to outlive SIGKILL");
  v1::NodeMessage message;
  *message.mutable_worker_remains() = *worker.unkillable;
  return message;
}

std::set<uint32_t> WorkersToKeep(const Workers& workers, const v1::Stop& stop) {
  std::set<uint32_t> keep;
  if (!stop.rejoin()) return keep;
  for (const auto& [local_rank, worker] : workers) {
    const bool replaced = std::count(stop.replace().begin(), stop.replace().end(), local_rank) != 0;
    if ((worker.waits() || worker.state == kCanRejoin) && !replaced) keep.insert(local_rank);
  }
  return keep;
}

bool HasUnkillableProcesses(const Workers& workers) {
  return std::any_of(workers.begin(), workers.end(),
                     [](const auto& worker) { return worker.second.unkillable.has_value(); });
}

v1::NodeProgress SumOfProgress(const Workers& workers) {
  v1::NodeProgress sum;
  double loss = 0;
  int losses = 0;
  for (const auto& [local_rank, worker] : workers) {
    if (!worker.progress) continue;
    const v1::Progress& one = *worker.progress;
    if (sum.workers() == 0 || one.step() < sum.min_step()) {
      sum.set_min_step(one.step());
      sum.set_slowest_local_rank(local_rank);
    }
    sum.set_max_step(std::max(sum.max_step(), one.step()));
    sum.set_samples_per_second(sum.samples_per_second() + one.samples_per_second());
    loss += one.loss();
    losses += one.loss() != 0;
    sum.set_of_generation(sum.of_generation() || one.of_generation());
    sum.set_workers(sum.workers() + 1);
    sum.set_total(std::max(sum.total(), one.total()));
    if (sum.figures().empty()) *sum.mutable_figures() = one.figures();
  }
  if (losses > 0) sum.set_loss(loss / losses);
  return sum;
}

namespace {

// The machine was short of a resource, so the error is not the program's.
bool IsShortage(int32_t error) {
  return error == EAGAIN || error == EMFILE || error == ENFILE || error == ENOMEM;
}

}  // namespace

v1::FailureCause ClassifyExit(const v1::WorkerExit& exit, bool stopped_by_us) {
  if (exit.exec_errno() != 0) return IsShortage(exit.exec_errno()) ? v1::CRASH : v1::EXEC_FAILED;
  // An OOM kill of a child does not matter if the worker still succeeded.
  if (exit.exit_code() == 0 && exit.signal() == 0) return v1::FAILURE_CAUSE_UNSPECIFIED;
  if (exit.out_of_memory()) return v1::OUT_OF_MEMORY;
  if (exit.signal() == SIGTERM && !stopped_by_us) return v1::PREEMPTED;
  const std::optional<rpc::ProgramError> error = rpc::FindProgramError(exit);
  if (!error.has_value()) return v1::CRASH;
  switch (error->kind) {
    case rpc::ProgramError::Kind::kCannotLoad:
      return v1::LOAD_FAILED;
    case rpc::ProgramError::Kind::kOutOfMemory:
      return v1::OUT_OF_MEMORY;
    case rpc::ProgramError::Kind::kException:
    case rpc::ProgramError::Kind::kLostPeer:
    case rpc::ProgramError::Kind::kLastLine:
      break;
  }
  return v1::CRASH;
}

v1::Failure FailureOf(const v1::WorkerExited& exited, uint32_t first_rank, const std::string& node,
                      uint64_t generation) {
  v1::Failure failure;
  failure.set_cause(exited.cause());
  failure.set_rank(first_rank + exited.local_rank());
  failure.set_local_rank(exited.local_rank());
  failure.set_node(node);
  failure.set_generation(generation);
  *failure.mutable_exit() = exited.exit();
  if (exited.has_evidence()) {
    v1::RankEvidence& evidence = *failure.add_evidence();
    evidence = exited.evidence();
    evidence.set_rank(failure.rank());
    evidence.set_local_rank(failure.local_rank());
    evidence.set_node(node);
  }
  failure.set_message(
      absl::StrCat(rpc::WorkerName(failure.rank(), failure.local_rank(), node), " ",
                   rpc::HowItEnded(exited.exit(), exited.cause(), exited.evidence()),
                   " in generation ", generation));
  return failure;
}

}  // namespace cadre::agent
