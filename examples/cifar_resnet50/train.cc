#include "train.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <utility>

#include "../device/device.h"
#include "announcement.h"
#include "augment.h"
#include "cadre/checkpoint.h"
#include "cadre/sampler.h"
#include "cadre/status_macros.h"
#include "cadre/torch/archive_file.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "cifar.h"
#include "resnet.h"
#include "torch/nn/functional/loss.h"
#include "torch/optim/sgd.h"
#include "torch/serialize.h"
#include "torch/utils.h"

namespace cadre::cifar {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using Milliseconds = std::chrono::duration<double, std::milli>;

// The number of steps between two output lines.
constexpr int64_t kLogEvery = 10;
constexpr int64_t kEvaluationBatch = 100;
// The margin over the communicator's own timeout, whose error names the missing rank.
constexpr std::chrono::seconds kLonger(5);
// The numbers of drawn images without --data-dir.
constexpr size_t kDrawnTraining = 2000;
constexpr size_t kDrawnTest = 500;
// The directory without --checkpoint-dir.
constexpr char kCheckpoints[] = "checkpoint";

struct Batch {
  torch::Tensor images;  // [n, 3, 32, 32], normalized
  torch::Tensor labels;  // [n]
};

// Images are augmented if `random` is given.
Batch Load(const Images& from, const int64_t* indices, int64_t count, std::mt19937_64* random,
           const torch::Device& device) {
  const torch::TensorOptions on_host = HostMemoryFor(device);
  Batch batch = {torch::empty({count, kChannels, kSide, kSide}, on_host),
                 torch::empty({count}, on_host.dtype(torch::kInt64))};
  for (int64_t i = 0; i < count; ++i) {
    const Augmentation augmentation =
        random == nullptr ? Augmentation() : DrawAugmentation(*random);
    Normalize(from.image(indices[i]), augmentation, batch.images.data_ptr<float>() + i * kPixels);
    batch.labels.data_ptr<int64_t>()[i] = from.labels[indices[i]];
  }
  return {batch.images.to(device, /*non_blocking=*/true),
          batch.labels.to(device, /*non_blocking=*/true)};
}

class Trainer {
 public:
  Trainer(Worker& worker, Communicator& communicator, const TrainOptions& options,
          torch::Device device, Images training, Images test, DistributedSampler sampler)
      : worker_(worker),
        communicator_(communicator),
        options_(options),
        device_(device),
        timeout_(options.timeout()),
        rank_batch_(options.batch_size / worker.world_size()),
        training_(std::move(training)),
        test_(std::move(test)),
        sampler_(std::move(sampler)),
        checkpoints_(options.checkpoint_dir),
        net_(MakeNet(options, device)),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(options.learning_rate)
                                           .momentum(options.momentum)
                                           .weight_decay(options.weight_decay)) {}

  Status Run();

 private:
  // The net moves to its device before the optimizer takes its parameters.
  static std::shared_ptr<ResNet> MakeNet(const TrainOptions& options, const torch::Device& device) {
    auto net = std::make_shared<ResNet>(ResNetOptions{kClasses, options.blocks, options.width});
    net->to(device);
    return net;
  }
  bool IsFirst() const { return worker_.rank() == 0; }
  Result<int> Resume();
  Status LoadParameters();
  Status Save(int epoch);
  Status SaveParameters(int epoch);
  Status RunEpoch(int epoch);
  Result<float> RunStep(const Batch& batch);
  Result<double> Evaluate();

  Worker& worker_;
  Communicator& communicator_;
  const TrainOptions& options_;
  const torch::Device device_;
  const std::chrono::nanoseconds timeout_;
  const int64_t rank_batch_;
  const Images training_, test_;
  const DistributedSampler sampler_;
  const CheckpointDirectory checkpoints_;
  std::shared_ptr<ResNet> net_;
  torch::optim::SGD optimizer_;
  std::unique_ptr<nn::DataParallel<ResNet>> model_;
  int64_t total_steps_ = 0;
};

Status Trainer::Run() {
  CADRE_ASSIGN_OR_RETURN(const int done, Resume());
  if (done > 0 && IsFirst()) std::printf("resumed after epoch %d\n", done);
  nn::DataParallelOptions options;
  options.timeout = options.reducer.timeout = timeout_ + kLonger;
  CADRE_ASSIGN_OR_RETURN(model_, nn::DataParallel<ResNet>::Create(net_, communicator_, options));
  const Clock::time_point begin = Clock::now();
  for (int epoch = done + 1; epoch <= options_.epochs; ++epoch) {
    CADRE_RETURN_IF_ERROR(RunEpoch(epoch));
    CADRE_RETURN_IF_ERROR(Save(epoch));
  }
  const Seconds took = Clock::now() - begin;
  CADRE_ASSIGN_OR_RETURN(const double accuracy, Evaluate());
  CADRE_RETURN_IF_ERROR(model_->CheckParametersEqual(timeout_).status());
  if (IsFirst()) {
    std::printf("Test accuracy: %.4f\n", accuracy);
    std::printf(">>> Training complete in: %.3f s\n", took.count());
  }
  return OkStatus();
}

Result<int> Trainer::Resume() {
  NewestCheckpoint newest;
  if (!options_.checkpoint_dir.empty()) {
    CADRE_ASSIGN_OR_RETURN(newest, LoadNewest(worker_, checkpoints_, timeout_));
  }
  if (!newest.warning.empty() && IsFirst()) std::printf("%s\n", newest.warning.c_str());
  if (!newest.checkpoint) {
    CADRE_RETURN_IF_ERROR(LoadParameters());
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
  total_steps_ = newest.checkpoint->step;
  return epoch.item<int>();
}

Status Trainer::LoadParameters() {
  const std::string& path = options_.checkpoint;
  if (path.empty()) return OkStatus();
  if (!std::filesystem::is_regular_file(path)) {
    return NotFoundError("--checkpoint " + path +
                         ": there is no such file; expected one of an earlier training, such as " +
                         EpochCheckpointName(worker_.world_size(), options_.epochs));
  }
  CADRE_RETURN_IF_ERROR(LoadArchive(
      path, device_, [this](torch::serialize::InputArchive& archive) { net_->load(archive); }));
  if (IsFirst()) std::printf("begins with the parameters of %s\n", path.c_str());
  return OkStatus();
}

// The file is written under another name first, so that it is complete at any moment.
Status Trainer::SaveParameters(int epoch) {
  if (!options_.save || !IsFirst()) return OkStatus();
  const std::string directory =
      options_.checkpoint_dir.empty() ? kCheckpoints : options_.checkpoint_dir;
  const std::string path = directory + "/" + EpochCheckpointName(worker_.world_size(), epoch);
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (!error) {
    torch::serialize::OutputArchive archive;
    net_->save(archive);
    CADRE_RETURN_IF_ERROR(SaveArchive(archive, path + ".new"));
    std::filesystem::rename(path + ".new", path, error);
  }
  if (!error) return OkStatus();
  return UnavailableError(path + ": cannot be written: " + error.message() +
                          "; give another --checkpoint-dir, or --no-save");
}

Status Trainer::Save(int epoch) {
  CADRE_RETURN_IF_ERROR(SaveParameters(epoch));
  if (options_.checkpoint_dir.empty()) return OkStatus();
  const auto write = [&](const std::string& path) {
    torch::serialize::OutputArchive archive;
    torch::serialize::OutputArchive model(archive.compilation_unit());
    torch::serialize::OutputArchive optimizer(archive.compilation_unit());
    net_->save(model);
    optimizer_.save(optimizer);
    archive.write("model", model);
    archive.write("optimizer", optimizer);
    archive.write("epoch", torch::tensor(epoch));
    return SaveArchive(archive, path);
  };
  return SaveCheckpoint(worker_, checkpoints_, total_steps_, write, timeout_);
}

Status Trainer::RunEpoch(int epoch) {
  const std::vector<int64_t> order = sampler_.Epoch(epoch - 1);
  const auto count = static_cast<int64_t>(order.size());
  // Samples that do not fill a batch are left out; another epoch's order will include them.
  const int64_t steps = std::max<int64_t>(1, count / rank_batch_);
  // Augmentations differ between ranks and epochs, and are the same in each run.
  std::seed_seq seeds = {static_cast<int64_t>(options_.seed), int64_t{epoch},
                         int64_t{worker_.rank()}};
  std::mt19937_64 random(seeds);
  Milliseconds loading(0), training(0);
  int64_t steps_since_log = 0;
  net_->train();
  for (int64_t step = 1; step <= steps; ++step) {
    const Clock::time_point begin = Clock::now();
    const int64_t from = (step - 1) * rank_batch_;
    const int64_t size = std::min(rank_batch_, count - from);
    const Batch batch = Load(training_, order.data() + from, size, &random, device_);
    const Clock::time_point loaded = Clock::now();
    CADRE_ASSIGN_OR_RETURN(const float loss, RunStep(batch));
    loading += loaded - begin;
    training += Clock::now() - loaded;
    ++total_steps_;
    ++steps_since_log;
    if (step % kLogEvery != 0 && step != steps) continue;
    const double seconds = Seconds(loading + training).count() / steps_since_log;
    worker_.ReportProgress(total_steps_, size * worker_.world_size() / seconds, loss);
    if (IsFirst()) {
      std::printf(
          "Epoch [%d/%d], Step [%lld/%lld], Loss: %.4f, Time data load: %.3fms, "
          "Time training: %.3fms\n",
          epoch, options_.epochs, static_cast<long long>(step), static_cast<long long>(steps), loss,
          loading.count() / steps_since_log, training.count() / steps_since_log);
    }
    loading = training = Milliseconds(0);
    steps_since_log = 0;
  }
  return OkStatus();
}

Result<float> Trainer::RunStep(const Batch& batch) {
  optimizer_.zero_grad();
  const torch::Tensor loss =
      torch::nn::functional::cross_entropy(model_->forward(batch.images), batch.labels);
  loss.backward();
  CADRE_RETURN_IF_ERROR(model_->Finish().status());
  optimizer_.step();
  return loss.item<float>();
}

// Each rank evaluates its own part: no image counts twice.
Result<double> Trainer::Evaluate() {
  torch::NoGradGuard no_grad;
  net_->eval();
  // The buffers differ: each rank has averaged over its own samples since the last exchange.
  CADRE_RETURN_IF_ERROR(nn::BroadcastBuffers(communicator_, *net_, timeout_ + kLonger));
  CADRE_ASSIGN_OR_RETURN(const EvaluationShard shard,
                         ShardForEvaluation(test_.size(), worker_.world_size(), worker_.rank()));
  int64_t correct = 0;
  for (int64_t from = shard.begin; from < shard.end; from += kEvaluationBatch) {
    std::vector<int64_t> indices;
    for (int64_t i = from; i < std::min(from + kEvaluationBatch, shard.end); ++i) {
      indices.push_back(i);
    }
    const Batch batch = Load(test_, indices.data(), indices.size(), nullptr, device_);
    correct += net_->forward(batch.images).argmax(1).eq(batch.labels).sum().item<int64_t>();
  }
  CADRE_RETURN_IF_ERROR(WaitOrAbort(
      communicator_, communicator_.AllReduce({&correct, 1, DataType::kInt64}, ReduceOp::kSum),
      timeout_ + kLonger));
  return static_cast<double>(correct) / test_.size();
}

Status CheckBatchSize(int batch_size, int world_size) {
  if (batch_size / world_size >= 2) return OkStatus();
  return InvalidArgumentError("--batch-size " + std::to_string(batch_size) + " is too small for " +
                              std::to_string(world_size) +
                              " ranks: batch normalization needs two images on each");
}

void Announce(const WorkerPlace& place, const torch::Device& device) {
  if (place.rank == 0) {
    std::printf("%s\n", TrainingLine(place.world_size, place.nodes, device.is_cuda()).c_str());
  }
  const int gpu = device.is_cuda() ? device.index() : place.local_rank;
  std::printf("%s\n", ProcessLine(place.rank, gpu, place.node_rank).c_str());
}

}  // namespace

Status Train(World& world, const TrainOptions& options) {
  Worker& worker = *world.worker;
  CADRE_RETURN_IF_ERROR(CheckBatchSize(options.batch_size, worker.world_size()));
  CADRE_ASSIGN_OR_RETURN(const torch::Device device,
                         ChooseDevice(options.device, worker.place().local_rank));
  Announce(worker.place(), device);
  torch::manual_seed(options.seed);
  const size_t limit = options.limit;
  Images training, test;
  if (options.data_dir.empty()) {
    training = DrawImages(limit == 0 ? kDrawnTraining : limit, 1);
    test = DrawImages(kDrawnTest, 2);
  } else {
    CADRE_ASSIGN_OR_RETURN(training, ReadTrainingImages(options.data_dir, limit));
    CADRE_ASSIGN_OR_RETURN(test, ReadTestImages(options.data_dir, 0));
  }
  if (test.size() == 0) return InvalidArgumentError("there are no test images");
  if (worker.rank() == 0) {
    const int rank_batch = options.batch_size / worker.world_size();
    std::printf("%zu training images, %zu test images, %d ranks with batches of %d\n",
                training.size(), test.size(), worker.world_size(), rank_batch);
  }
  SamplerOptions sampling;
  sampling.samples = training.size();
  sampling.world_size = worker.world_size();
  sampling.rank = worker.rank();
  sampling.seed = options.seed;
  CADRE_ASSIGN_OR_RETURN(DistributedSampler sampler, DistributedSampler::Create(sampling));
  return Trainer(worker, *world.communicator, options, device, std::move(training), std::move(test),
                 std::move(sampler))
      .Run();
}

}  // namespace cadre::cifar
