// What basic.cc and spawn.cc do as each rank. Includes libtorch.
#ifndef CADRE_EXAMPLES_DDP_TUTORIAL_BASIC_TRAINING_H_
#define CADRE_EXAMPLES_DDP_TUTORIAL_BASIC_TRAINING_H_

#include "cadre/communicator.h"
#include "cadre/status.h"
#include "cadre/worker.h"
#include "torch/types.h"

namespace cadre {

// One step of the toy model with samples of this rank's own; afterwards all ranks have the same
// parameters, and each prints their hash.
Status TrainBasic(Worker& worker, Communicator& communicator, const torch::Device& device);

}  // namespace cadre

#endif  // CADRE_EXAMPLES_DDP_TUTORIAL_BASIC_TRAINING_H_
