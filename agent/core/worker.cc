#include "agent/core/worker.h"

#include <algorithm>

namespace cadre::agent {
namespace {

constexpr WorkerState kStarting = WorkerState::kStarting, kRunning = WorkerState::kRunning,
                      kCanRejoin = WorkerState::kCanRejoin, kWaits = WorkerState::kWaits,
                      kGaveUp = WorkerState::kGaveUp, kLate = WorkerState::kLate,
                      kRemains = WorkerState::kRemains, kExited = WorkerState::kExited;

// A worker may ask to rejoin, or wait, before the supervisor has said that it runs. Who is killed
// for being late, remains after it was killed, or has ended, changes its mind too late.
// clang-format off
constexpr WorkerState kNext[kWorkerStates][kWorkerEvents] = {
    //                runs        can rejoin  cannot     waits     told        is back     too late   remains   exits
    /* kStarting  */ {kRunning,   kCanRejoin, kStarting, kWaits,   kStarting,  kStarting,  kLate,     kRemains, kExited},
    /* kRunning   */ {kRunning,   kCanRejoin, kRunning,  kWaits,   kRunning,   kRunning,   kLate,     kRemains, kExited},
    /* kCanRejoin */ {kCanRejoin, kCanRejoin, kRunning,  kWaits,   kCanRejoin, kCanRejoin, kLate,     kRemains, kExited},
    /* kWaits     */ {kWaits,     kWaits,     kWaits,    kWaits,   kGaveUp,    kWaits,     kWaits,    kRemains, kExited},
    /* kGaveUp    */ {kGaveUp,    kGaveUp,    kGaveUp,   kGaveUp,  kGaveUp,    kWaits,     kGaveUp,   kRemains, kExited},
    /* kLate      */ {kLate,      kLate,      kLate,     kLate,    kLate,      kLate,      kLate,     kRemains, kExited},
    /* kRemains   */ {kRemains,   kRemains,   kRemains,  kRemains, kRemains,   kRemains,   kRemains,  kRemains, kExited},
    /* kExited    */ {kExited,    kExited,    kExited,   kExited,  kExited,    kExited,    kExited,   kExited,  kExited},
};
// clang-format on

}  // namespace

WorkerState Next(WorkerState state, WorkerEvent event) {
  return kNext[static_cast<int>(state)][static_cast<int>(event)];
}

void Worker::Progressed(MonoTime at) {
  if (progressed_at.has_value() && at > *progressed_at) {
    const absl::Duration took = at - *progressed_at;
    usual = usual == absl::ZeroDuration() ? took : (3 * usual + took) / 4;
  }
  progressed_at = std::max(progressed_at.value_or(MonoTime()), at);
}

v1::NodeMessage ExitedMessage(const Worker& worker) {
  v1::NodeMessage message;
  *message.mutable_worker_exited() = worker.exit;
  return message;
}

v1::NodeMessage RemainsMessage(const Worker& worker) {
  v1::NodeMessage message;
  *message.mutable_worker_remains() = *worker.remains;
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

bool HasRemains(const Workers& workers) {
  return std::any_of(workers.begin(), workers.end(),
                     [](const auto& worker) { return worker.second.remains.has_value(); });
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

}  // namespace cadre::agent
