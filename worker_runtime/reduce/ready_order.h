// The order in which gradients became ready, as all ranks use it.
#ifndef CADRE_WORKER_RUNTIME_REDUCE_READY_ORDER_H_
#define CADRE_WORKER_RUNTIME_REDUCE_READY_ORDER_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker_runtime/communicator.h"

namespace cadre::reduce {

// Collective. Rank 0's `ready`, indices below `count`, and behind them those that did not become
// ready there, the last first.
absl::StatusOr<std::vector<size_t>> AgreeOnReadyOrder(Communicator& communicator,
                                                      absl::Span<const size_t> ready, size_t count,
                                                      absl::Duration timeout);

}  // namespace cadre::reduce

#endif  // CADRE_WORKER_RUNTIME_REDUCE_READY_ORDER_H_
