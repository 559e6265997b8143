#include "basic_training.h"

#include <cstdint>
#include <cstdio>
#include <memory>

#include "cadre/status_macros.h"
#include "cadre/torch/data_parallel.h"
#include "program.h"
#include "torch/nn/functional/loss.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "toy_model.h"

namespace cadre {

Status TrainBasic(Worker& worker, Communicator& communicator, const torch::Device& device) {
  // Each rank draws other values; DataParallel then gives all of them rank 0's parameters.
  torch::manual_seed(worker.rank());
  auto net = std::make_shared<ToyModel>();
  net->to(device);
  CADRE_ASSIGN_OR_RETURN(auto model, nn::DataParallel<ToyModel>::Create(net, communicator));
  torch::optim::SGD optimizer(net->parameters(), /*lr=*/0.001);

  optimizer.zero_grad();
  const torch::Tensor outputs = model->forward(torch::randn({20, 10}, device));
  const torch::Tensor loss =
      torch::nn::functional::mse_loss(outputs, torch::randn({20, 5}, device));
  loss.backward();
  CADRE_RETURN_IF_ERROR(model->Finish().status());  // the gradients are now averages over all ranks
  optimizer.step();

  CADRE_ASSIGN_OR_RETURN(const uint64_t hash, model->CheckParametersEqual(kTimeout));
  std::printf("rank %d of %d: loss %.4f, parameters equal on all ranks: %016llx\n", worker.rank(),
              worker.world_size(), loss.item<float>(), static_cast<unsigned long long>(hash));
  return OkStatus();
}

}  // namespace cadre
