// Rank 0 saves a checkpoint; all ranks load it, each onto its own device, and train on.
#include "cadre/checkpoint.h"

#include <cstdio>
#include <memory>
#include <string>

#include "../flags/flags.h"
#include "CLI/CLI.hpp"
#include "cadre/status_macros.h"
#include "cadre/torch/archive_file.h"
#include "cadre/torch/data_parallel.h"
#include "program.h"
#include "torch/nn/functional/loss.h"
#include "torch/optim/sgd.h"
#include "torch/serialize.h"
#include "torch/utils.h"
#include "toy_model.h"

namespace cadre {
namespace {

// Runs one data-parallel step of `net` on random samples.
Status TrainOneStep(Communicator& communicator, const std::shared_ptr<ToyModel>& net,
                    const torch::Device& device) {
  CADRE_ASSIGN_OR_RETURN(auto model, nn::DataParallel<ToyModel>::Create(net, communicator));
  torch::optim::SGD optimizer(net->parameters(), /*lr=*/0.001);
  optimizer.zero_grad();
  const torch::Tensor outputs = model->forward(torch::randn({20, 10}, device));
  torch::nn::functional::mse_loss(outputs, torch::randn({20, 5}, device)).backward();
  CADRE_RETURN_IF_ERROR(model->Finish().status());
  optimizer.step();
  return model->CheckParametersEqual(kTimeout).status();
}

Status SaveAndLoad(Worker& worker, Communicator& communicator, const std::string& directory,
                   const torch::Device& device) {
  torch::manual_seed(worker.rank());
  auto net = std::make_shared<ToyModel>();
  net->to(device);
  CADRE_RETURN_IF_ERROR(TrainOneStep(communicator, net, device));

  // The function runs on rank 0 only. All ranks return when the file is on disk: no other barrier
  // is needed, and no rank can load an incomplete file.
  const CheckpointDirectory checkpoints(directory);
  const auto write = [&](const std::string& path) {
    torch::serialize::OutputArchive archive;
    net->save(archive);
    return SaveArchive(archive, path);
  };
  CADRE_RETURN_IF_ERROR(SaveCheckpoint(worker, checkpoints, /*step=*/1, write, kTimeout));

  CADRE_ASSIGN_OR_RETURN(const NewestCheckpoint newest, LoadNewest(worker, checkpoints, kTimeout));
  if (!newest.warning.empty() && worker.rank() == 0) std::printf("%s\n", newest.warning.c_str());
  if (!newest.checkpoint) return DataLossError("there is no checkpoint in " + directory);
  torch::serialize::InputArchive archive;
  // Rank 0 used another device; the saved tensors are loaded onto this rank's.
  archive.load_from(newest.checkpoint->path, device);
  auto loaded = std::make_shared<ToyModel>();
  loaded->to(device);
  loaded->load(archive);
  for (const auto& item : loaded->named_parameters()) {
    if (!torch::equal(item.value(), net->named_parameters()[item.key()])) {
      return DataLossError(item.key() + " is not what was saved");
    }
  }
  std::printf("rank %d of %d: loaded the parameters of step %lld onto %s\n", worker.rank(),
              worker.world_size(), static_cast<long long>(newest.checkpoint->step),
              device.str().c_str());
  CADRE_RETURN_IF_ERROR(TrainOneStep(communicator, loaded, device));
  std::printf("rank %d of %d: trained on\n", worker.rank(), worker.world_size());
  return OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  CLI::App app("Saving on one rank, loading on all.");
  std::string device = "cpu", directory;
  app.add_option("--device", device)->capture_default_str();
  app.add_option("--checkpoint-dir", directory, "that all nodes see")->required();
  if (const auto status = cadre::flags::Parse(app, argc, argv)) return *status;
  return cadre::RunAsWorker(
      "checkpoint", [&](cadre::Worker& worker, cadre::Communicator& communicator) {
        return cadre::SaveAndLoad(worker, communicator, directory, torch::Device(device));
      });
}
