// A model of two layers on two devices, and the choice of a rank's two devices. Includes libtorch.
#ifndef CADRE_EXAMPLES_DDP_TUTORIAL_SPLIT_MODEL_H_
#define CADRE_EXAMPLES_DDP_TUTORIAL_SPLIT_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/worker.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/linear.h"
#include "torch/types.h"

namespace cadre {

struct TwoDevices {
  torch::Device first, second;
};

// Each name is a device of libtorch's, or cuda: the first or the second of the two GPUs that belong
// to this rank, if there are two for each rank of the node. Empty means the same if there are
// enough GPUs, else cpu. Fails with FAILED_PRECONDITION if cuda was asked for and there are not
// enough.
Result<TwoDevices> ChooseTwoDevices(const std::string& first, const std::string& second,
                                    const WorkerPlace& place, int gpus);

// The first layer is on one device, the second on the other; activations travel between them in the
// forward pass, and their gradients back.
struct SplitModel : torch::nn::Module {
  explicit SplitModel(const TwoDevices& devices);

  // Takes inputs on any device; the result is on the second device.
  torch::Tensor forward(const torch::Tensor& inputs);

  const TwoDevices devices;
  torch::nn::Linear net1, net2;
};

// Runs one step as every rank, on this rank's own samples, which may be on any device. Returns the
// hash of all parameters, which is the same on all ranks.
Result<uint64_t> TrainOneStep(const std::shared_ptr<SplitModel>& net, Communicator& communicator,
                              const torch::Tensor& inputs, const torch::Tensor& labels);

}  // namespace cadre

#endif  // CADRE_EXAMPLES_DDP_TUTORIAL_SPLIT_MODEL_H_
