// Options that all ranks must choose alike, since they decide which collectives the ranks take part
// in.
#ifndef CADRE_SAME_OPTIONS_H_
#define CADRE_SAME_OPTIONS_H_

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/status.h"

namespace cadre {

// Names and values, in the same order on all ranks.
using ChosenOptions = std::vector<std::pair<std::string, std::string>>;

// Collective. OK on every rank if all have chosen what rank 0 has; otherwise INVALID_ARGUMENT on
// every rank, with the first option that differs, both values and the rank.
Status CheckSameOptions(Communicator& communicator, const ChosenOptions& chosen,
                        std::chrono::nanoseconds timeout);

}  // namespace cadre

#endif  // CADRE_SAME_OPTIONS_H_
