// A model that is spread over two devices inside each rank, and trained by all ranks together.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "../flags/flags.h"
#include "CLI/CLI.hpp"
#include "cadre/status_macros.h"
#include "cadre/torch/data_parallel.h"
#include "program.h"
#include "torch/nn/functional/loss.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"

namespace cadre {
namespace {

// The first layer on one device, the second on the other; activations travel between them in the
// forward pass, and their gradients back.
struct SplitModel : torch::nn::Module {
  SplitModel(const torch::Device& first, const torch::Device& second)
      : first(first),
        second(second),
        net1(register_module("net1", torch::nn::Linear(10, 10))),
        net2(register_module("net2", torch::nn::Linear(10, 5))) {
    net1->to(first);
    net2->to(second);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(net1(x.to(first)));
    return net2(x.to(second));
  }

  const torch::Device first, second;
  torch::nn::Linear net1, net2;
};

Status Train(Worker& worker, Communicator& communicator, const torch::Device& first,
             const torch::Device& second) {
  torch::manual_seed(worker.rank());
  auto net = std::make_shared<SplitModel>(first, second);
  CADRE_ASSIGN_OR_RETURN(auto model, nn::DataParallel<SplitModel>::Create(net, communicator));
  torch::optim::SGD optimizer(net->parameters(), /*lr=*/0.001);

  optimizer.zero_grad();
  const torch::Tensor outputs = model->forward(torch::randn({20, 10}));
  // The labels belong where the outputs are.
  const torch::Tensor labels = torch::randn({20, 5}, outputs.device());
  torch::nn::functional::mse_loss(outputs, labels).backward();
  CADRE_RETURN_IF_ERROR(model->Finish().status());
  optimizer.step();

  CADRE_ASSIGN_OR_RETURN(const uint64_t hash, model->CheckParametersEqual(kTimeout));
  std::printf("rank %d of %d: layers on %s and %s, parameters equal on all ranks: %016llx\n",
              worker.rank(), worker.world_size(), net->net1->weight.device().str().c_str(),
              outputs.device().str().c_str(), static_cast<unsigned long long>(hash));
  return OkStatus();
}

// "cuda" stands for the `index`-th GPU of the two that belong to this rank.
torch::Device DeviceOf(const std::string& name, const Worker& worker, int index) {
  if (name != "cuda") return torch::Device(name);
  return torch::Device(torch::kCUDA, static_cast<int8_t>(2 * worker.place().local_rank + index));
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  CLI::App app("Model parallelism inside a rank, data parallelism between ranks.");
  std::string first = "cpu", second = "cpu";
  app.add_option("--first-device", first, "of the first layer; cuda: one of this rank's two")
      ->capture_default_str();
  app.add_option("--second-device", second, "of the second layer")->capture_default_str();
  if (const auto status = cadre::flags::Parse(app, argc, argv)) return *status;
  return cadre::RunAsWorker(
      "model_parallel", [&](cadre::Worker& worker, cadre::Communicator& communicator) {
        return cadre::Train(worker, communicator, cadre::DeviceOf(first, worker, 0),
                            cadre::DeviceOf(second, worker, 1));
      });
}
