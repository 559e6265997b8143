// Records name moments on the monotonic clock of the machine that wrote them. Pure.
#ifndef CADRE_RENDEZVOUS_LOG_RECORD_TIMES_H_
#define CADRE_RENDEZVOUS_LOG_RECORD_TIMES_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "proto/record.pb.h"

namespace cadre::log {

// A monotonic clock, tied to the wall clock.
struct ClockBase {
  // Names one start of the machine: between two of them monotonic times do not compare.
  std::string boot_id;
  // Wall clock at monotonic time 0, microseconds since the Unix epoch.
  int64_t unix_us_at_zero = 0;
  // Its time when this was read. Not kept with records.
  int64_t now_us = std::numeric_limits<int64_t>::max();
};

// This machine's, now.
ClockBase ThisClockBase();

// The difference that turns times on `from` into times on `to`. Within one start of the machine
// nothing, whatever was done to the wall clock.
int64_t ShiftBetween(const ClockBase& from, const ClockBase& to);

// Adds `shift_us` to every moment that the record names. 0 means "not yet" and stays.
void ShiftTimes(int64_t shift_us, v1::Record* record);

// From the record with this index on, until the next of these.
struct WrittenOn {
  size_t begin = 0;
  ClockBase clock;
};

// Moves all moments to the clock `to`. Wall clocks are set, and differ between machines, but what
// is on record has been: the newest moment of one clock is moved to now at the latest, and the
// others keep their distance from it. By how much those of each clock were moved.
std::vector<int64_t> MoveToClock(const std::vector<WrittenOn>& written_on, const ClockBase& to,
                                 std::vector<v1::Record>* records);

}  // namespace cadre::log

#endif  // CADRE_RENDEZVOUS_LOG_RECORD_TIMES_H_
