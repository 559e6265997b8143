// All-reduces of this repository's backends, between processes.
#ifndef CADRE_BENCH_COLLECTIVES_CADRE_ALL_REDUCE_H_
#define CADRE_BENCH_COLLECTIVES_CADRE_ALL_REDUCE_H_

#include <vector>

#include "bench/collectives/schedule.h"

namespace cadre {

enum class Backend {
  kSharedMemory,        // buffers of AllocateBuffer
  kSharedMemoryStaged,  // buffers of the caller
  kSockets
};

// Returns microseconds, one per measurement; empty if a rank failed, which has printed the reason.
// With `beside_bound` the bare loop takes turns with the backend in the same processes, and its
// figures follow.
std::vector<double> RunCadre(Backend backend, int ranks, const std::vector<Measurement>& schedule,
                             bool beside_bound = false);

}  // namespace cadre

#endif  // CADRE_BENCH_COLLECTIVES_CADRE_ALL_REDUCE_H_
