#include "train.h"

#include <dlfcn.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "../device/device.h"
#include "cadre/checkpoint.h"
#include "cadre/exit_codes.h"
#include "cadre/in_place.h"
#include "cadre/sampler.h"
#include "cadre/status_macros.h"
#include "cadre/torch/archive_file.h"
#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "hooked_model.h"
#include "ledger.h"
#include "net.h"
#include "samples.h"
#include "synchronization.h"
#include "threads.h"
#include "torch/nn/functional/loss.h"
#include "torch/optim/sgd.h"
#include "torch/serialize.h"
#include "torch/utils.h"
#include "wrapped_optimizer.h"

namespace cadre::mnist {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr size_t kEvaluationBatch = 500;
// The margin over the communicator's own timeout, whose error names the missing rank.
constexpr std::chrono::seconds kLonger(5);

// Returns the times of an epoch, or "" if the way to synchronize does not measure them.
std::string TimesText(const SynchronizationCost& before, const SynchronizationCost& after) {
  if (!before.times || !after.times) return "";
  char text[128];
  std::snprintf(text, sizeof(text), "reducing took %.0f ms, of which %.0f ms came after backward; ",
                Milliseconds(after.times->communication - before.times->communication).count(),
                Milliseconds(after.times->exposed_wait - before.times->exposed_wait).count());
  return text;
}

// Holds the state of the whole training in one process; Run() is the work of one generation.
class Trainer : public InPlaceState {
 public:
  Trainer(const TrainOptions& options, torch::Device device, Samples train, Samples test,
          EpochCursor cursor, Ledger ledger)
      : options_(options),
        device_(device),
        timeout_(options.timeout()),
        train_(std::move(train)),
        test_(std::move(test)),
        cursor_(std::move(cursor)),
        ledger_(std::move(ledger)),
        checkpoints_(options.checkpoint_dir),
        net_(MakeNet(device)),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(options.learning_rate)
                                           .momentum(options.momentum)
                                           .weight_decay(options.weight_decay)) {}

  Status Run(Worker& worker, Communicator& communicator);
  int exit_status() const { return leaves_ ? kWorkerExitForNextGeneration : 0; }

  // The end of an epoch also changes the state, so it counts as a position.
  int64_t position() const override { return begun_ ? total_steps_ + cursor_.epoch() : -1; }
  Result<std::string> Save() const override;
  Status Load(std::string_view bytes) override;

 private:
  // Loss and hits of this rank in a part of an epoch.
  struct Sums {
    double loss = 0;
    double hits = 0;
    double samples = 0;
  };

  // The net moves to its device before the optimizer takes its parameters.
  static std::shared_ptr<Net> MakeNet(const torch::Device& device) {
    auto net = std::make_shared<Net>();
    net->to(device);
    return net;
  }
  bool IsFirst() const { return worker_->rank() == 0; }
  Status TrainToTheEnd();
  Status Prepare();
  Status Begin();
  Result<int> Resume();
  Status SaveEpoch(int epoch);
  // Returns the accuracy after the epoch.
  Result<double> RunEpoch(int epoch);
  Result<float> RunStep(Sums& sums);
  Result<float> Step(const std::vector<int64_t>& samples, Sums& sums);
  Status SayTraining(Sums sums);
  Result<double> Evaluate();
  void FailOnPurpose(int epoch, int64_t step, int64_t steps) const;
  void Log(int epoch, int64_t step, int64_t steps, double loss, int64_t samples);

  Worker* worker_ = nullptr;
  Communicator* communicator_ = nullptr;
  const TrainOptions& options_;
  const torch::Device device_;
  const std::chrono::nanoseconds timeout_;
  const Samples train_, test_;
  EpochCursor cursor_;
  const Ledger ledger_;
  const CheckpointDirectory checkpoints_;
  std::shared_ptr<Net> net_;
  torch::optim::SGD optimizer_;
  std::unique_ptr<Synchronization> synchronization_;

  bool begun_ = false;
  int64_t total_steps_ = 0;
  Clock::time_point last_log_;
  // Set when the rest of the training is left to the next generation, which has more nodes.
  bool leaves_ = false;
};

Status Trainer::Run(Worker& worker, Communicator& communicator) {
  worker_ = &worker;
  communicator_ = &communicator;
  SetThreads(options_.threads, worker.world_size());
  Status status = TrainToTheEnd();
  // The synchronization must not outlive the communicator.
  synchronization_.reset();
  return status;
}

Status Trainer::TrainToTheEnd() {
  // Only the first generation begins; a worker that joins later received the state.
  CADRE_RETURN_IF_ERROR(begun_ ? Prepare() : Begin());
  std::optional<double> accuracy;
  while (cursor_.epoch() < options_.epochs) {
    const int epoch = static_cast<int>(cursor_.epoch()) + 1;
    CADRE_ASSIGN_OR_RETURN(accuracy, RunEpoch(epoch));
    CADRE_RETURN_IF_ERROR(SaveEpoch(epoch));
    cursor_.MoveTo(epoch, 0);
    if (options_.checkpoint_dir.empty() || epoch == options_.epochs) continue;
    CADRE_ASSIGN_OR_RETURN(leaves_, CheckpointWanted(*worker_, timeout_));
    if (leaves_) return OkStatus();
  }
  // All epochs may have been done before a restart. Then every rank evaluates, even if it did so in
  // an earlier generation: another rank may be new.
  if (!accuracy) {
    CADRE_ASSIGN_OR_RETURN(accuracy, Evaluate());
  }
  CADRE_ASSIGN_OR_RETURN(const uint64_t hash, nn::CheckEqualState(*communicator_, *net_, timeout_));
  if (IsFirst()) {
    std::printf("test accuracy %.4f\n", *accuracy);
    std::printf("parameters equal on %d ranks: %016llx\n", worker_->world_size(),
                static_cast<unsigned long long>(hash));
  }
  return OkStatus();
}

Status Trainer::Prepare() {
  const Replica replica = {net_, optimizer_, *communicator_, timeout_ + kLonger};
  if (options_.dist_option.empty()) {
    CADRE_ASSIGN_OR_RETURN(synchronization_,
                           MakeHookedModel(options_.sync, options_.sparsity, replica));
  } else {
    CADRE_ASSIGN_OR_RETURN(synchronization_,
                           MakeWrappedOptimizer(options_.dist_option, options_.sparsity, replica));
  }
  return OkStatus();
}

Status Trainer::Begin() {
  if (IsFirst()) {
    std::printf("%lld training images, %lld test images, %d ranks with batches of %d\n",
                static_cast<long long>(train_.size()), static_cast<long long>(test_.size()),
                worker_->world_size(), options_.batch_size);
  }
  CADRE_ASSIGN_OR_RETURN(const int done, Resume());
  if (done > 0 && IsFirst()) std::printf("resumed from epoch %d\n", done);
  cursor_.MoveTo(done, 0);
  begun_ = true;
  return OkStatus();
}

Result<std::string> Trainer::Save() const {
  torch::serialize::OutputArchive archive;
  torch::serialize::OutputArchive model(archive.compilation_unit());
  torch::serialize::OutputArchive optimizer(archive.compilation_unit());
  net_->save(model);
  optimizer_.save(optimizer);
  archive.write("model", model);
  archive.write("optimizer", optimizer);
  archive.write("place", torch::tensor({cursor_.epoch(), cursor_.taken(), total_steps_}));
  std::ostringstream bytes;
  archive.save_to(bytes);
  return bytes.str();
}

Status Trainer::Load(std::string_view bytes) {
  torch::serialize::InputArchive archive, model, optimizer;
  archive.load_from(bytes.data(), bytes.size(), device_);
  archive.read("model", model);
  archive.read("optimizer", optimizer);
  torch::Tensor place;
  archive.read("place", place);
  net_->load(model);
  optimizer_.load(optimizer);
  cursor_.MoveTo(place[0].item<int64_t>(), place[1].item<int64_t>());
  total_steps_ = place[2].item<int64_t>();
  begun_ = true;
  return OkStatus();
}

Result<int> Trainer::Resume() {
  NewestCheckpoint newest;
  if (!options_.checkpoint_dir.empty()) {
    CADRE_ASSIGN_OR_RETURN(newest, LoadNewest(*worker_, checkpoints_, timeout_));
  }
  if (!newest.warning.empty() && IsFirst()) std::printf("%s\n", newest.warning.c_str());
  if (!newest.checkpoint) {
    CADRE_RETURN_IF_ERROR(Prepare());
    return 0;
  }
  torch::serialize::InputArchive archive, model, optimizer;
  archive.load_from(newest.checkpoint->path, device_);
  archive.read("model", model);
  archive.read("optimizer", optimizer);
  torch::Tensor epoch;
  archive.read("epoch", epoch);
  net_->load(model);
  optimizer_.load(optimizer);
  // Loading may have moved the parameters in memory.
  CADRE_RETURN_IF_ERROR(Prepare());
  CADRE_RETURN_IF_ERROR(synchronization_->Load(worker_->rank(), archive));
  total_steps_ = newest.checkpoint->step;
  return epoch.item<int>();
}

Status Trainer::SaveEpoch(int epoch) {
  if (options_.checkpoint_dir.empty()) return OkStatus();
  torch::serialize::OutputArchive archive;
  CADRE_RETURN_IF_ERROR(synchronization_->Save(archive));
  const auto write = [&](const std::string& path) {
    torch::serialize::OutputArchive model(archive.compilation_unit());
    torch::serialize::OutputArchive optimizer(archive.compilation_unit());
    net_->save(model);
    optimizer_.save(optimizer);
    archive.write("model", model);
    archive.write("optimizer", optimizer);
    archive.write("epoch", torch::tensor(epoch));
    return SaveArchive(archive, path);
  };
  return SaveCheckpoint(*worker_, checkpoints_, total_steps_, write, timeout_);
}

Result<double> Trainer::RunEpoch(int epoch) {
  // The number of samples that the ranks take together in one step.
  const int64_t batch = int64_t{options_.batch_size} * worker_->world_size();
  const int64_t left = train_.size() - cursor_.taken();
  int64_t step = cursor_.taken() / batch;
  const int64_t steps = step + (left + batch - 1) / batch;
  const Clock::time_point begin = last_log_ = Clock::now();
  const SynchronizationCost before = synchronization_->cost();
  const int64_t steps_before = total_steps_;
  if (IsFirst()) std::printf("Starting Epoch %d:\n", epoch - 1);
  net_->train();
  Sums sums;
  int64_t logged = cursor_.taken();
  while (!cursor_.AtEnd()) {
    FailOnPurpose(epoch, ++step, steps);
    CADRE_ASSIGN_OR_RETURN(const float loss, RunStep(sums));
    if (step % options_.log_every != 0 && !cursor_.AtEnd()) continue;
    Log(epoch, step, steps, loss, cursor_.taken() - logged);
    logged = cursor_.taken();
  }
  const Seconds took = Clock::now() - begin;
  const auto ran = static_cast<double>(std::max<int64_t>(total_steps_ - steps_before, 1));
  const SynchronizationCost cost = synchronization_->cost();
  CADRE_RETURN_IF_ERROR(SayTraining(sums));
  CADRE_RETURN_IF_ERROR(synchronization_->MakeReplicasEqual());
  CADRE_ASSIGN_OR_RETURN(const double accuracy, Evaluate());
  if (IsFirst()) {
    std::printf("Evaluation accuracy = %f, Elapsed Time = %fs\n", accuracy,
                Seconds(Clock::now() - begin).count());
    std::printf("epoch %d/%d: loss %.4f, test accuracy %.4f, %.1f s; %s%.0f bytes per step\n",
                epoch, options_.epochs, sums.loss / ran, accuracy, took.count(),
                TimesText(before, cost).c_str(),
                static_cast<double>(cost.bytes - before.bytes) / ran);
  }
  return accuracy;
}

// Prints an epoch's line as SINGA's programs do: the loss is the sum over steps and ranks.
Status Trainer::SayTraining(Sums sums) {
  double all[] = {sums.loss, sums.hits, sums.samples};
  CADRE_RETURN_IF_ERROR(WaitOrAbort(
      *communicator_,
      communicator_->AllReduce({all, std::size(all), DataType::kFloat64}, ReduceOp::kSum),
      timeout_ + kLonger));
  if (!IsFirst()) return OkStatus();
  std::printf("Training loss = %f, training accuracy = %f\n", all[0],
              all[1] / std::max(all[2], 1.0));
  return OkStatus();
}

// Returns the loss. At the end of an epoch this rank may have no samples, while other ranks do.
Result<float> Trainer::Step(const std::vector<int64_t>& samples, Sums& sums) {
  const int64_t all = std::min(int64_t{options_.batch_size} * worker_->world_size(),
                               train_.size() - cursor_.taken());
  float loss = 0;
  torch::Tensor mean;
  if (!samples.empty()) {
    const torch::Tensor indices = torch::tensor(samples).to(device_);
    const torch::Tensor labels = train_.labels.index_select(0, indices);
    const torch::Tensor scores = synchronization_->Forward(train_.images.index_select(0, indices));
    mean = torch::nn::functional::cross_entropy(scores, labels);
    loss = mean.item<float>();
    sums.hits += scores.argmax(1).eq(labels).sum().item<double>();
  }
  const auto own = static_cast<int64_t>(samples.size());
  sums.loss += loss;
  sums.samples += static_cast<double>(own);
  CADRE_RETURN_IF_ERROR(synchronization_->Step(mean, own, all));
  return loss;
}

Result<float> Trainer::RunStep(Sums& sums) {
  const std::vector<int64_t> samples =
      cursor_.Next(worker_->rank(), worker_->world_size(), options_.batch_size);
  CADRE_RETURN_IF_ERROR(ledger_.Take(worker_->place(), cursor_.epoch(), total_steps_ + 1, samples));
  CADRE_ASSIGN_OR_RETURN(const float loss, Step(samples, sums));
  // Nothing that can fail may come between the step and these: they are one change of the state.
  ++total_steps_;
  cursor_.Advance(worker_->world_size(), options_.batch_size);
  CADRE_RETURN_IF_ERROR(ledger_.Done(worker_->place(), total_steps_));
  CADRE_RETURN_IF_ERROR(synchronization_->AfterStep());
  return loss;
}

// Each rank evaluates every n-th image: no image counts twice.
Result<double> Trainer::Evaluate() {
  torch::NoGradGuard no_grad;
  net_->eval();
  int64_t correct = 0;
  const torch::Tensor mine =
      torch::arange(worker_->rank(), test_.size(), worker_->world_size()).to(device_);
  for (const torch::Tensor& batch : mine.split(kEvaluationBatch)) {
    const torch::Tensor scores = net_->forward(test_.images.index_select(0, batch));
    correct += scores.argmax(1).eq(test_.labels.index_select(0, batch)).sum().item<int64_t>();
  }
  CADRE_RETURN_IF_ERROR(WaitOrAbort(
      *communicator_, communicator_->AllReduce({&correct, 1, DataType::kInt64}, ReduceOp::kSum),
      timeout_ + kLonger));
  return static_cast<double>(correct) / test_.size();
}

void Trainer::FailOnPurpose(int epoch, int64_t step, int64_t steps) const {
  if (worker_->rank() != options_.fail_rank || epoch != options_.fail_epoch) return;
  if (worker_->place().restart_count != 0 || step != (steps + 1) / 2) return;
  std::printf("rank %d kills itself in epoch %d, as asked\n", worker_->rank(), epoch);
  raise(SIGKILL);
}

void Trainer::Log(int epoch, int64_t step, int64_t steps, double loss, int64_t samples) {
  const Clock::time_point now = Clock::now();
  const double seconds = std::max(Seconds(now - last_log_).count(), 1e-6);
  last_log_ = now;
  const double rate = samples / seconds;
  worker_->ReportProgress(total_steps_, rate, loss);
  if (!IsFirst()) return;
  std::printf("epoch %d/%d step %lld/%lld: loss %.4f, %.0f samples/s\n", epoch, options_.epochs,
              static_cast<long long>(step), static_cast<long long>(steps), loss, rate);
}

}  // namespace

Result<int> Train(Worker& worker, const TrainOptions& options) {
  CADRE_ASSIGN_OR_RETURN(const torch::Device device,
                         ChooseDevice(options.device, worker.place().local_rank));
  torch::manual_seed(options.seed);
  CADRE_ASSIGN_OR_RETURN(const std::string directory,
                         FindSamples(worker, options.data_dir, options.timeout()));
  CADRE_ASSIGN_OR_RETURN(Samples train, LoadSamples(directory, "train", options.limit, device));
  CADRE_ASSIGN_OR_RETURN(Samples test, LoadSamples(directory, "t10k", 0, device));
  CADRE_ASSIGN_OR_RETURN(EpochCursor cursor,
                         EpochCursor::Create(train.size(), /*shuffle=*/true, options.seed));
  CADRE_ASSIGN_OR_RETURN(Ledger ledger, Ledger::Open(options.ledger_dir));
  Trainer trainer(options, device, std::move(train), std::move(test), std::move(cursor),
                  std::move(ledger));
  InPlaceOptions in_place;
  in_place.communicator.timeout = options.timeout();
  CADRE_RETURN_IF_ERROR(TrainInPlace(
      worker, trainer, in_place,
      [&](Worker& now, Communicator& communicator) { return trainer.Run(now, communicator); }));
  return trainer.exit_status();
}

void SetThreads(int threads, int world_size) {
  if (threads == 0 && world_size > 1) threads = 1;
  if (threads == 0) return;
  torch::set_num_threads(threads);
  // The BLAS library behind libtorch has its own thread pool.
  using SetBlasThreads = void (*)(int);
  auto* set = reinterpret_cast<SetBlasThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"));
  if (set != nullptr) set(threads);
}

}  // namespace cadre::mnist
