// Each rank spreads the model over two devices, and all ranks train it together.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "../flags/flags.h"
#include "CLI/CLI.hpp"
#include "cadre/status_macros.h"
#include "program.h"
#include "split_model.h"
#include "torch/cuda.h"
#include "torch/utils.h"

namespace cadre {
namespace {

Status Train(Worker& worker, Communicator& communicator, const std::string& first,
             const std::string& second) {
  const int gpus = torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 0;
  CADRE_ASSIGN_OR_RETURN(const TwoDevices devices,
                         ChooseTwoDevices(first, second, worker.place(), gpus));
  // Each rank draws other values; DataParallel then gives all of them rank 0's parameters.
  torch::manual_seed(worker.rank());
  auto net = std::make_shared<SplitModel>(devices);
  CADRE_ASSIGN_OR_RETURN(
      const uint64_t hash,
      TrainOneStep(net, communicator, torch::randn({20, 10}), torch::randn({20, 5})));
  std::printf("rank %d of %d: layers on %s and %s, parameters equal on all ranks: %016llx\n",
              worker.rank(), worker.world_size(), net->net1->weight.device().str().c_str(),
              net->net2->weight.device().str().c_str(), static_cast<unsigned long long>(hash));
  return OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  CLI::App app("Model parallelism inside a rank, data parallelism between ranks.");
  std::string first, second;
  app.add_option("--first-device", first,
                 "of the first layer; cuda: one of this rank's two; default: that where each rank "
                 "of the node has two, else cpu");
  app.add_option("--second-device", second, "of the second layer");
  if (const auto status = cadre::flags::Parse(app, argc, argv)) return *status;
  return cadre::RunAsWorker("model_parallel",
                            [&](cadre::Worker& worker, cadre::Communicator& communicator) {
                              return cadre::Train(worker, communicator, first, second);
                            });
}
