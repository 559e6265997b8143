// A training that continues after a worker died: each life begins at the last checkpoint.
#include <signal.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "../flags/flags.h"
#include "CLI/CLI.hpp"
#include "cadre/checkpoint.h"
#include "cadre/sampler.h"
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

constexpr int64_t kSamples = 96;

struct Options {
  std::string checkpoint_dir;
  int steps = 20;
  int save_every = 5;
  // For demonstrations: this rank kills itself before this step of the job's first life.
  int fail_rank = -1;
  int fail_step = 12;
};

class ElasticTraining {
 public:
  ElasticTraining(Worker& worker, Communicator& communicator, const Options& options)
      : worker_(worker),
        communicator_(communicator),
        options_(options),
        checkpoints_(options.checkpoint_dir) {}

  Status Run() {
    torch::manual_seed(1);
    inputs_ = torch::randn({kSamples, 10});
    labels_ = torch::randn({kSamples, 5});
    net_ = std::make_shared<ToyModel>();
    CADRE_ASSIGN_OR_RETURN(const int64_t done, Resume());
    std::printf("rank %d of %d: life %d begins after step %lld\n", worker_.rank(),
                worker_.world_size(), worker_.place().restart_count + 1,
                static_cast<long long>(done));
    CADRE_ASSIGN_OR_RETURN(model_, nn::DataParallel<ToyModel>::Create(net_, communicator_));
    torch::optim::SGD optimizer(net_->parameters(), /*lr=*/0.01);
    // The number of ranks may differ from the last life's: each rank takes its current share.
    CADRE_ASSIGN_OR_RETURN(
        auto sampler, DistributedSampler::Create({kSamples, worker_.world_size(), worker_.rank()}));
    for (int64_t step = done + 1; step <= options_.steps; ++step) {
      FailOnPurpose(step);
      const torch::Tensor mine = torch::tensor(sampler.Epoch(step));
      optimizer.zero_grad();
      const torch::Tensor outputs = model_->forward(inputs_.index_select(0, mine));
      const torch::Tensor loss =
          torch::nn::functional::mse_loss(outputs, labels_.index_select(0, mine));
      loss.backward();
      CADRE_RETURN_IF_ERROR(model_->Finish().status());
      optimizer.step();
      worker_.ReportProgress(step, /*samples_per_second=*/0, loss.item<float>());
      if (step % options_.save_every == 0) CADRE_RETURN_IF_ERROR(Save(step));
    }
    CADRE_ASSIGN_OR_RETURN(const uint64_t hash, model_->CheckParametersEqual(kTimeout));
    if (worker_.rank() == 0) {
      std::printf("%d steps done, parameters equal on all ranks: %016llx\n", options_.steps,
                  static_cast<unsigned long long>(hash));
    }
    return OkStatus();
  }

 private:
  Result<int64_t> Resume() {
    CADRE_ASSIGN_OR_RETURN(const NewestCheckpoint newest,
                           LoadNewest(worker_, checkpoints_, kTimeout));
    if (!newest.warning.empty() && worker_.rank() == 0) {
      std::printf("%s\n", newest.warning.c_str());
    }
    if (!newest.checkpoint) return 0;
    torch::serialize::InputArchive archive;
    archive.load_from(newest.checkpoint->path);
    net_->load(archive);
    return newest.checkpoint->step;
  }

  Status Save(int64_t step) {
    const auto write = [&](const std::string& path) {
      torch::serialize::OutputArchive archive;
      net_->save(archive);
      return SaveArchive(archive, path);
    };
    return SaveCheckpoint(worker_, checkpoints_, step, write, kTimeout);
  }

  void FailOnPurpose(int64_t step) const {
    if (worker_.rank() != options_.fail_rank || step != options_.fail_step) return;
    if (worker_.place().restart_count != 0) return;
    std::printf("rank %d kills itself before step %lld, as asked\n", worker_.rank(),
                static_cast<long long>(step));
    raise(SIGKILL);
  }

  Worker& worker_;
  Communicator& communicator_;
  const Options& options_;
  const CheckpointDirectory checkpoints_;
  torch::Tensor inputs_, labels_;
  std::shared_ptr<ToyModel> net_;
  std::unique_ptr<nn::DataParallel<ToyModel>> model_;
};

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  CLI::App app("Training that survives its workers.");
  cadre::Options options;
  app.add_option("--checkpoint-dir", options.checkpoint_dir, "that all nodes see")->required();
  app.add_option("--steps", options.steps)->check(cadre::flags::Positive())->capture_default_str();
  app.add_option("--save-every", options.save_every, "steps between checkpoints")
      ->check(cadre::flags::Positive())
      ->capture_default_str();
  app.add_option("--fail-rank", options.fail_rank,
                 "demonstration: this rank kills itself once, before --fail-step");
  app.add_option("--fail-step", options.fail_step)->capture_default_str();
  if (const auto status = cadre::flags::Parse(app, argc, argv)) return *status;
  return cadre::RunAsWorker("elastic",
                            [&](cadre::Worker& worker, cadre::Communicator& communicator) {
                              return cadre::ElasticTraining(worker, communicator, options).Run();
                            });
}
