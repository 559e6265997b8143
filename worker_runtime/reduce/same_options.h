// What all ranks must have chosen alike, since collectives depend on it.
#ifndef CADRE_WORKER_RUNTIME_REDUCE_SAME_OPTIONS_H_
#define CADRE_WORKER_RUNTIME_REDUCE_SAME_OPTIONS_H_

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/status.h"

namespace cadre::reduce {

// Names and values, in an order that is the same everywhere.
using ChosenOptions = std::vector<std::pair<std::string, std::string>>;

// Collective. OK on every rank where all have chosen what rank 0 has; else INVALID_ARGUMENT on
// every rank, with the first option that differs, both values and the rank.
Status CheckSameOptions(Communicator& communicator, const ChosenOptions& chosen,
                        std::chrono::nanoseconds timeout);

}  // namespace cadre::reduce

#endif  // CADRE_WORKER_RUNTIME_REDUCE_SAME_OPTIONS_H_
