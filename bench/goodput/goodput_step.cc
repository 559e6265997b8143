// Trains the MNIST network on random images until it is killed, in steps of a fixed length.
//
//   goodput_step --dir DIR [--step-ms 50] [--batch 16] [--save-every 20]
//
// A step's computing and exchange are real; the rest of its length is waited for, as for a GPU, so
// that steps are worth the same in every program and under any load. What checkpoints take is not
// hidden in that. Writes DIR/steps and DIR/events: see ledger.h. Goes on from DIR/checkpoints;
// where the job recovers in place, from the others' state.
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "bench/goodput/ledger.h"
#include "cadre/checkpoint.h"
#include "cadre/in_place.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/worker.h"
#include "examples/mnist_cnn/net.h"
#include "torch/nn/functional/loss.h"
#include "torch/optim/sgd.h"
#include "torch/serialize.h"
#include "torch/utils.h"
#include "worker_runtime/absl_types.h"

namespace cadre::bench {
namespace {

constexpr std::chrono::nanoseconds kTimeout = std::chrono::minutes(1);

struct Options {
  std::string dir;
  int step_ms = 50;
  int batch = 16;
  int save_every = 20;
};

class Training : public InPlaceState {
 public:
  Training(const Options& options, Ledger& ledger)
      : options_(options),
        ledger_(ledger),
        checkpoints_(options.dir + "/checkpoints"),
        net_(std::make_shared<mnist::Net>()),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(1e-3).momentum(0.9)) {}

  // Returns only with an error.
  Status Run(Worker& worker, Communicator& communicator);

  int64_t position() const override { return step_; }
  Result<std::string> Save() const override;
  Status Load(std::string_view bytes) override;

 private:
  void Write(torch::serialize::OutputArchive& archive) const;
  void Read(torch::serialize::InputArchive& archive);
  Status Resume(Worker& worker);
  Status SaveToDisk(Worker& worker) const;
  Status Step(nn::DataParallel<mnist::Net>& model, const torch::Tensor& images,
              const torch::Tensor& labels);

  const Options& options_;
  Ledger& ledger_;
  const CheckpointDirectory checkpoints_;
  std::shared_ptr<mnist::Net> net_;
  torch::optim::SGD optimizer_;
  int64_t step_ = -1;  // none is done, and no checkpoint was looked for
};

void Training::Write(torch::serialize::OutputArchive& archive) const {
  torch::serialize::OutputArchive model(archive.compilation_unit());
  torch::serialize::OutputArchive optimizer(archive.compilation_unit());
  net_->save(model);
  optimizer_.save(optimizer);
  archive.write("model", model);
  archive.write("optimizer", optimizer);
  archive.write("step", torch::tensor(step_));
}

void Training::Read(torch::serialize::InputArchive& archive) {
  torch::serialize::InputArchive model, optimizer;
  archive.read("model", model);
  archive.read("optimizer", optimizer);
  torch::Tensor step;
  archive.read("step", step);
  net_->load(model);
  optimizer_.load(optimizer);
  step_ = step.item<int64_t>();
}

Result<std::string> Training::Save() const {
  torch::serialize::OutputArchive archive;
  Write(archive);
  std::ostringstream bytes;
  archive.save_to(bytes);
  return bytes.str();
}

Status Training::Load(std::string_view bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size());
  Read(archive);
  return OkStatus();
}

Status Training::Resume(Worker& worker) {
  ASSIGN_OR_RETURN(const NewestCheckpoint newest, LoadNewest(worker, checkpoints_, kTimeout));
  step_ = 0;
  if (!newest.checkpoint.has_value()) return OkStatus();
  torch::serialize::InputArchive archive;
  archive.load_from(newest.checkpoint->path);
  Read(archive);
  return OkStatus();
}

Status Training::SaveToDisk(Worker& worker) const {
  const auto write = [this](const std::string& path) {
    torch::serialize::OutputArchive archive;
    Write(archive);
    archive.save_to(path);
    return OkStatus();
  };
  return SaveCheckpoint(worker, checkpoints_, step_, write, kTimeout);
}

Status Training::Step(nn::DataParallel<mnist::Net>& model, const torch::Tensor& images,
                      const torch::Tensor& labels) {
  model.ZeroGrad();
  torch::nn::functional::cross_entropy(model.forward(images), labels).backward();
  RETURN_IF_ERROR(model.Finish().status());
  RETURN_IF_ERROR(model.BeforeOptimizerStep());
  optimizer_.step();
  ++step_;
  return OkStatus();
}

Status Training::Run(Worker& worker, Communicator& communicator) {
  ledger_.Event(worker.rank(), "connected");
  if (step_ < 0) RETURN_IF_ERROR(Resume(worker));
  ledger_.Event(worker.rank(), "resumed");
  nn::DataParallelOptions parallel;
  parallel.timeout = parallel.reducer.timeout = kTimeout;
  ASSIGN_OR_RETURN(const auto model,
                   nn::DataParallel<mnist::Net>::Create(net_, communicator, parallel));
  const torch::Tensor images = torch::randn({options_.batch, 1, 28, 28});
  const torch::Tensor labels = torch::randint(10, {options_.batch}, torch::kInt64);
  for (bool first = true;; first = false) {
    const absl::Time end = absl::Now() + absl::Milliseconds(options_.step_ms);
    RETURN_IF_ERROR(Step(*model, images, labels));
    absl::SleepFor(end - absl::Now());
    if (worker.rank() == 0) ledger_.Step(step_);
    if (first) ledger_.Event(worker.rank(), "stepped");
    worker.ReportProgress(step_, options_.batch * worker.world_size() * 1e3 / options_.step_ms, 0);
    if (step_ % options_.save_every == 0) RETURN_IF_ERROR(SaveToDisk(worker));
  }
}

Status Train(const Options& options) {
  ASSIGN_OR_RETURN(Ledger ledger, Ledger::Open(options.dir));
  ASSIGN_OR_RETURN(auto worker, Worker::Connect());
  ledger.Event(worker->rank(), "main");
  torch::set_num_threads(1);
  torch::manual_seed(1);
  Training training(options, ledger);
  InPlaceOptions in_place;
  in_place.communicator.timeout = in_place.rejoin_timeout = kTimeout;
  return TrainInPlace(*worker, training, in_place, [&training](Worker& now, Communicator& all) {
    return training.Run(now, all);
  });
}

}  // namespace
}  // namespace cadre::bench

int main(int argc, char** argv) {
  CLI::App app("Trains in steps of a fixed length until it is killed.");
  cadre::bench::Options options;
  app.add_option("--dir", options.dir)->required();
  app.add_option("--step-ms", options.step_ms)->check(CLI::PositiveNumber);
  app.add_option("--batch", options.batch)->check(CLI::PositiveNumber);
  app.add_option("--save-every", options.save_every)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    const cadre::Status status = cadre::bench::Train(options);
    std::fprintf(stderr, "goodput_step: %s\n", status.ToString().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "goodput_step: %s\n", error.what());
  }
  return 1;
}
