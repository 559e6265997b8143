// The cost of a process, from /proc.
#ifndef CADRE_BENCH_SCALE_PROCESS_COST_H_
#define CADRE_BENCH_SCALE_PROCESS_COST_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace cadre {

struct ProcessCost {
  int64_t resident_bytes = 0;
  int64_t peak_bytes = 0;
  int64_t threads = 0;
  // User and system time so far, of all its threads.
  absl::Duration processor;
};

// NOT_FOUND: there is no such process.
absl::StatusOr<ProcessCost> CostOf(int process);

}  // namespace cadre

#endif  // CADRE_BENCH_SCALE_PROCESS_COST_H_
