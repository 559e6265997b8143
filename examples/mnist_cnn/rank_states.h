// What each rank remembers between steps, in one archive. Includes libtorch.
#ifndef CADRE_EXAMPLES_MNIST_CNN_RANK_STATES_H_
#define CADRE_EXAMPLES_MNIST_CNN_RANK_STATES_H_

#include <chrono>
#include <string>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "torch/serialize/archive.h"

namespace cadre::mnist {

// Collective: the archive of every rank gets the states of all.
Status SaveRankStates(Communicator& communicator, const std::string& mine,
                      torch::serialize::OutputArchive& archive, std::chrono::nanoseconds timeout);

// Empty where the archive has none for this rank.
Result<std::string> LoadRankState(int rank, torch::serialize::InputArchive& archive);

}  // namespace cadre::mnist

#endif  // CADRE_EXAMPLES_MNIST_CNN_RANK_STATES_H_
