#include "rendezvous/web/counters.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace cadre::web {

Histogram::Histogram(std::vector<double> bounds)
    : bounds(std::move(bounds)), in_bucket(this->bounds.size()) {}

void Histogram::Observe(double value) {
  ++count;
  sum += value;
  const auto bound = std::lower_bound(bounds.begin(), bounds.end(), value);
  if (bound != bounds.end()) ++in_bucket[bound - bounds.begin()];
}

void Counters::Count(const Event& event) {
  if (const auto* called = std::get_if<StoreCalled>(&event)) {
    ++store_operations_[called->request.operation_case()];
  } else if (const auto* said = std::get_if<NodeMessageReceived>(&event)) {
    ++node_messages_[said->message.body_case()];
    if (said->message.has_store()) {
      ++store_operations_[said->message.store().operation_case()];
    }
  }
}

void Counters::Count(const v1::Record& record) {
  const std::string& job = record.job();
  const auto found = recovering_.find(job);
  switch (record.body_case()) {
    case v1::Record::kStopOrdered:
      return CountStop(job, record.stop_ordered());
    case v1::Record::kGatheringBegan:
      if (found == recovering_.end()) return;
      ++failures_[found->second.cause];
      found->second.counted = true;
      if (record.gathering_began().counted()) ++restarts_[found->second.cause];
      return;
    case v1::Record::kGenerationFormed: {
      ++generations_;
      if (found == recovering_.end()) return;
      size_t world = 0;
      const saved::Generation& formed = record.generation_formed().generation();
      for (const saved::Member& member : formed.members()) world += member.slots();
      found->second.next_generation = formed.number();
      found->second.started.assign(world, false);
      found->second.number_started = 0;
      return;
    }
    case v1::Record::kWorkerRan:
      return CountStarted(job, record.worker_ran().generation(), record.worker_ran().rank(),
                          record.worker_ran().at_us());
    case v1::Record::kWorkerEnded:
      // A worker that succeeded quickly was never reported as running.
      if (record.worker_ended().has_failure()) return;
      return CountStarted(job, record.worker_ended().generation(), record.worker_ended().rank(),
                          record.worker_ended().at_us());
    case v1::Record::kJobEnded:
      ++jobs_ended_[record.job_ended().verdict().outcome()];
      if (found == recovering_.end()) return;
      if (!found->second.counted) ++failures_[found->second.cause];
      recovering_.erase(found);
      return;
    default:
      return;
  }
}

void Counters::CountStop(const std::string& job, const v1::StopOrdered& record) {
  if (!record.has_root_cause()) return;
  Recovering& recovering = recovering_[job];
  // A second order for the same generation corrects the cause of the first.
  if (recovering.failed_generation != record.generation()) {
    recovering = {};
    recovering.failed_generation = record.generation();
    recovering.failed_us = record.at_us();
  }
  recovering.cause = record.root_cause().cause();
}

void Counters::CountStarted(const std::string& job, uint64_t generation, uint32_t rank,
                            int64_t at_us) {
  const auto found = recovering_.find(job);
  if (found == recovering_.end()) return;
  Recovering& recovering = found->second;
  if (generation != recovering.next_generation || rank >= recovering.started.size() ||
      recovering.started[rank]) {
    return;
  }
  recovering.started[rank] = true;
  if (++recovering.number_started < recovering.started.size()) return;
  recoveries_.Observe(static_cast<double>(at_us - recovering.failed_us) / 1e6);
  recovering_.erase(found);
}

void Counters::CountCommit(absl::Duration took) { commits_.Observe(absl::ToDoubleSeconds(took)); }

}  // namespace cadre::web
