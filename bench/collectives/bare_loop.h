// The bound: the time of an all-reduce in shared memory when there is nothing but memory traffic
// and two barriers.
#ifndef CADRE_BENCH_COLLECTIVES_BARE_LOOP_H_
#define CADRE_BENCH_COLLECTIVES_BARE_LOOP_H_

#include <atomic>
#include <cstddef>
#include <vector>

#include "absl/time/time.h"

namespace cadre {

constexpr absl::Duration kBarrierTimeout = absl::Minutes(2);

// Each of 2 or 4 ranks has a buffer of float32 in memory that all share. A rank exits if another
// one has not reached a barrier within kBarrierTimeout.
class BareLoop {
 public:
  // Call it in the process that forks the ranks, before it forks. Exits if there is no memory.
  BareLoop(int ranks, size_t bytes);
  ~BareLoop();
  BareLoop(const BareLoop&) = delete;
  BareLoop& operator=(const BareLoop&) = delete;

  // Call it first in each rank.
  void Enter(int rank);
  // Does this `times` times: a barrier, each rank sums its part of the first `count` elements into
  // all buffers, a barrier.
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
