#include "split_model.h"

#include "cadre/status_macros.h"
#include "cadre/torch/data_parallel.h"
#include "program.h"
#include "torch/nn/functional/loss.h"
#include "torch/optim/sgd.h"

namespace cadre {

Result<TwoDevices> ChooseTwoDevices(const std::string& first, const std::string& second,
                                    const WorkerPlace& place, int gpus) {
  const bool two_each = gpus >= 2 * place.local_world_size;
  if (!two_each && (first == "cuda" || second == "cuda")) {
    return FailedPreconditionError("two GPUs for each of the " +
                                   std::to_string(place.local_world_size) +
                                   " ranks of this node are not there: libtorch finds " +
                                   std::to_string(gpus) + "; take cpu, or name a device");
  }
  const auto device = [&](const std::string& name, int index) {
    if (name.empty() && !two_each) return torch::Device(torch::kCPU);
    if (!name.empty() && name != "cuda") return torch::Device(name);
    return torch::Device(torch::kCUDA,
                         static_cast<torch::DeviceIndex>(2 * place.local_rank + index));
  };
  return TwoDevices{device(first, 0), device(second, 1)};
}

SplitModel::SplitModel(const TwoDevices& devices)
    : devices(devices),
      net1(register_module("net1", torch::nn::Linear(10, 10))),
      net2(register_module("net2", torch::nn::Linear(10, 5))) {
  net1->to(devices.first);
  net2->to(devices.second);
}

torch::Tensor SplitModel::forward(const torch::Tensor& inputs) {
  const torch::Tensor activations = torch::relu(net1(inputs.to(devices.first)));
  return net2(activations.to(devices.second));
}

Result<uint64_t> TrainOneStep(const std::shared_ptr<SplitModel>& net, Communicator& communicator,
                              const torch::Tensor& inputs, const torch::Tensor& labels) {
  CADRE_ASSIGN_OR_RETURN(auto model, nn::DataParallel<SplitModel>::Create(net, communicator));
  torch::optim::SGD optimizer(net->parameters(), /*lr=*/0.001);

  optimizer.zero_grad();
  const torch::Tensor outputs = model->forward(inputs);
  // The labels must be on the device of the outputs.
  torch::nn::functional::mse_loss(outputs, labels.to(outputs.device())).backward();
  CADRE_RETURN_IF_ERROR(model->Finish().status());
  optimizer.step();
  return model->CheckParametersEqual(kTimeout);
}

}  // namespace cadre
