// The bound: the time of an all-reduce in shared memory when there is nothing but memory traffic
// and two barriers.
#ifndef CADRE_BENCH_COLLECTIVES_BARE_LOOP_H_
#define CADRE_BENCH_COLLECTIVES_BARE_LOOP_H_

#include <atomic>
#include <cstddef>
#include <vector>

#include "absl/time/time.h"

namespace cadre {

constexpr absl::Duration kBarrierPatience = absl::Minutes(2);

// One buffer of float32 per process in memory that all share. 2 or 4 ranks. A rank ends its process
// where another one has not come to a barrier for kBarrierPatience.
class BareLoop {
 public:
  // In the process that forks the ranks, before it does. Ends it when there is no memory.
  BareLoop(int ranks, size_t bytes);
  ~BareLoop();
  BareLoop(const BareLoop&) = delete;
  BareLoop& operator=(const BareLoop&) = delete;

  // In each rank, first.
  void Enter(int rank);
  // `times`: barrier, each sums its part of the first `count` elements into all, barrier.
  void Reduce(size_t count, int times);

 private:
  struct ArrivalLine {
    alignas(64) std::atomic<unsigned> arrived;
  };
  class Barrier;

  const int ranks_;
  const size_t bytes_;
  const bool has_cores_;
  ArrivalLine* const lines_;
  std::vector<float*> buffers_;
  int rank_ = 0;
  unsigned phase_ = 0;
};

}  // namespace cadre

#endif  // CADRE_BENCH_COLLECTIVES_BARE_LOOP_H_
