// What all ranks must have chosen alike, since it decides which collectives they take part in.
#ifndef CADRE_SAME_OPTIONS_H_
#define CADRE_SAME_OPTIONS_H_

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/status.h"

namespace cadre {

// Names and values, in an order that is the same everywhere.
using ChosenOptions = std::vector<std::pair<std::string, std::string>>;

// Collective. OK on every rank where all have chosen what rank 0 has; else INVALID_ARGUMENT on
// every rank, with the first option that differs, both values and the rank.
Status CheckSameOptions(Communicator& communicator, const ChosenOptions& chosen,
                        std::chrono::nanoseconds timeout);

}  // namespace cadre

#endif  // CADRE_SAME_OPTIONS_H_
