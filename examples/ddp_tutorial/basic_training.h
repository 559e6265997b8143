// The work of each rank in basic.cc and spawn.cc. Includes libtorch.
#ifndef CADRE_EXAMPLES_DDP_TUTORIAL_BASIC_TRAINING_H_
#define CADRE_EXAMPLES_DDP_TUTORIAL_BASIC_TRAINING_H_

#include "cadre/communicator.h"
#include "cadre/status.h"
#include "cadre/worker.h"
#include "torch/types.h"

namespace cadre {

// Runs one step of the toy model on this rank's own samples; afterwards all ranks have the same
// parameters, and each prints their hash.
Status TrainBasic(Worker& worker, Communicator& communicator, const torch::Device& device);

}  // namespace cadre

#endif  // CADRE_EXAMPLES_DDP_TUTORIAL_BASIC_TRAINING_H_
