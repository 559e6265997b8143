#include "rendezvous/store/record_times.h"

#include <time.h>

#include <fstream>

#include "base/clock.h"

namespace cadre {
namespace {

int64_t Shifted(int64_t at_us, int64_t shift_us) { return at_us == 0 ? 0 : at_us + shift_us; }

void ShiftRestored(int64_t shift_us, v1::JobRestored* job) {
  for (int64_t& at_us : *job->mutable_counted_restarts_us()) at_us = Shifted(at_us, shift_us);
  job->set_created_us(Shifted(job->created_us(), shift_us));
  job->set_gathering_us(Shifted(job->gathering_us(), shift_us));
  job->set_not_before_us(Shifted(job->not_before_us(), shift_us));
  job->set_last_join_us(Shifted(job->last_join_us(), shift_us));
  v1::GenerationRestored* generation = job->mutable_generation();
  generation->set_formed_us(Shifted(generation->formed_us(), shift_us));
  generation->set_stopping_us(Shifted(generation->stopping_us(), shift_us));
  generation->set_failed_us(Shifted(generation->failed_us(), shift_us));
}

template <typename Body>
void ShiftAt(int64_t shift_us, Body* body) {
  body->set_at_us(Shifted(body->at_us(), shift_us));
}

}  // namespace

ClockBase ThisClockBase() {
  ClockBase base;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> base.boot_id;
  timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  base.unix_us_at_zero = int64_t{wall.tv_sec} * 1000000 + wall.tv_nsec / 1000 - MonoNow().micros();
  return base;
}

int64_t ShiftBetween(const ClockBase& from, const ClockBase& to) {
  if (!from.boot_id.empty() && from.boot_id == to.boot_id) return 0;
  return from.unix_us_at_zero - to.unix_us_at_zero;
}

void ShiftTimes(int64_t shift_us, v1::Record* record) {
  if (shift_us == 0) return;
  switch (record->body_case()) {
    case v1::Record::kJobCreated:
      return ShiftAt(shift_us, record->mutable_job_created());
    case v1::Record::kNodeAdmitted:
      return ShiftAt(shift_us, record->mutable_node_admitted());
    case v1::Record::kGenerationFormed:
      return ShiftAt(shift_us, record->mutable_generation_formed());
    case v1::Record::kWorkerRan:
      return ShiftAt(shift_us, record->mutable_worker_ran());
    case v1::Record::kWorkerEnded:
      return ShiftAt(shift_us, record->mutable_worker_ended());
    case v1::Record::kStopOrdered:
      return ShiftAt(shift_us, record->mutable_stop_ordered());
    case v1::Record::kNodeCleared:
      return ShiftAt(shift_us, record->mutable_node_cleared());
    case v1::Record::kGatheringBegan: {
      v1::GatheringBegan* began = record->mutable_gathering_began();
      began->set_not_before_us(Shifted(began->not_before_us(), shift_us));
      return ShiftAt(shift_us, began);
    }
    case v1::Record::kJobEnded:
      return ShiftAt(shift_us, record->mutable_job_ended());
    case v1::Record::kJobRestored:
      return ShiftRestored(shift_us, record->mutable_job_restored());
    case v1::Record::kPartPlaced:
      return ShiftAt(shift_us, record->mutable_part_placed());
    case v1::Record::kNodeRemoved:
    case v1::Record::kKeyWritten:
    case v1::Record::kKeyErased:
    case v1::Record::kCommunicatorIdPublished:
    case v1::Record::kStoreAnswered:
    case v1::Record::kClusterNodeSet:
    case v1::Record::kClusterNodeGone:
    case v1::Record::kPartTakenBack:
    case v1::Record::kPartEnded:
    case v1::Record::kClusterRestored:
    case v1::Record::BODY_NOT_SET:
      return;
  }
}

}  // namespace cadre
