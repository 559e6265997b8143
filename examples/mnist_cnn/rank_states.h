// Saves what each rank keeps between steps, in one archive. Includes libtorch.
// Implemented in synchronization.cc.
#ifndef CADRE_EXAMPLES_MNIST_CNN_RANK_STATES_H_
#define CADRE_EXAMPLES_MNIST_CNN_RANK_STATES_H_

#include <chrono>
#include <string>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "torch/serialize/archive.h"

namespace cadre::mnist {

// Collective: every rank's archive receives the states of all ranks.
Status SaveRankStates(Communicator& communicator, const std::string& mine,
                      torch::serialize::OutputArchive& archive, std::chrono::nanoseconds timeout);

// Returns "" if the archive has no state for this rank.
Result<std::string> LoadRankState(int rank, torch::serialize::InputArchive& archive);

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_RANK_STATES_H_
