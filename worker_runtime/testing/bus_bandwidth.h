// Bus bandwidth as nccl-tests defines it: what a collective needs of each rank's link, so that
// numbers compare between collectives, between world sizes, and with the hardware. Pure.
#ifndef CADRE_WORKER_RUNTIME_TESTING_BUS_BANDWIDTH_H_
#define CADRE_WORKER_RUNTIME_TESTING_BUS_BANDWIDTH_H_

#include <cstddef>

#include "absl/time/time.h"

namespace cadre::testing {

enum class Collective { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce };

// Returns bytes per second. `bytes` is the whole buffer: the input of reduce-scatter, the output of
// all-gather.
inline double BusBandwidth(Collective collective, size_t bytes, absl::Duration duration,
                           int ranks) {
  const double algorithm = static_cast<double>(bytes) / absl::ToDoubleSeconds(duration);
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (collective) {
    case Collective::kAllReduce:
      return algorithm * 2 * others;
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      return algorithm * others;
    case Collective::kBroadcast:
    case Collective::kReduce:
      return algorithm;
  }
  return 0;
}

}  // namespace cadre::testing

#endif  // CADRE_WORKER_RUNTIME_TESTING_BUS_BANDWIDTH_H_
