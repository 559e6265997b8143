// The order in which gradients became ready, as all ranks use it.
#ifndef CADRE_WORKER_RUNTIME_REDUCE_READY_ORDER_H_
#define CADRE_WORKER_RUNTIME_REDUCE_READY_ORDER_H_

#include <chrono>
#include <cstddef>
#include <vector>

#include "absl/time/time.h"
#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/span.h"

namespace cadre::reduce {

// Collective. Rank 0's `ready`, indices below `count`, and behind them those that did not become
// ready there, the last first.
Result<std::vector<size_t>> AgreeOnReadyOrder(Communicator& communicator, Span<const size_t> ready,
                                              size_t count, std::chrono::nanoseconds timeout);

}  // namespace cadre::reduce

#endif  // CADRE_WORKER_RUNTIME_REDUCE_READY_ORDER_H_
