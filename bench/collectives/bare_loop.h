// The bound: what an all-reduce in shared memory takes when there is nothing but memory traffic and
// two meetings.
#ifndef CADRE_BENCH_COLLECTIVES_BARE_LOOP_H_
#define CADRE_BENCH_COLLECTIVES_BARE_LOOP_H_

#include <vector>

#include "bench/collectives/schedule.h"

namespace cadre {

// One buffer of float32 per process in memory that all share; barrier, each sums its part into all,
// barrier. Microseconds, one per measurement.
std::vector<double> RunBareLoop(int ranks, const std::vector<Measurement>& schedule);

}  // namespace cadre

#endif  // CADRE_BENCH_COLLECTIVES_BARE_LOOP_H_
