#include "train.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <sstream>
#include <utility>

#include "../cifar_resnet50/image_network.h"
#include "../device/device.h"
#include "architecture.h"
#include "cadre/checkpoint.h"
#include "cadre/sampler.h"
#include "cadre/status_macros.h"
#include "cadre/torch/archive_file.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/torch/scatter_parallel.h"
#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "dataset.h"
#include "job_flags.h"
#include "meters.h"
#include "score.h"
#include "share.h"
#include "torch/nn/functional/loss.h"
#include "torch/optim/sgd.h"
#include "torch/serialize.h"
#include "torch/utils.h"

namespace cadre::imagenet {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// The margin over the communicator's own timeout, whose error names the missing rank.
constexpr std::chrono::seconds kLonger(5);
// The learning rate is divided by ten after so many epochs.
constexpr int kEpochsPerDecay = 30;

// The meters of one epoch's batches.
struct BatchMeters {
  AverageMeter time{"Time", kSeconds}, data{"Data", kSeconds}, loss{"Loss", kLoss};
  AverageMeter top1{"Acc@1", kPercent}, top5{"Acc@5", kPercent};

  void Update(const Score& score) {
    loss.Update(score.Loss(), score.pictures);
    top1.Update(score.Top1(), score.pictures);
    top5.Update(score.Top5(), score.pictures);
  }
};

torch::Tensor PixelsOf(Batch& batch, int side, const torch::Device& device) {
  return torch::from_blob(batch.pixels.data(), {static_cast<int64_t>(batch.labels.size()),
                                                int64_t{kChannels}, int64_t{side}, int64_t{side}})
      .to(device);
}

torch::Tensor LabelsOf(Batch& batch, const torch::Device& device) {
  return torch::from_blob(batch.labels.data(), {static_cast<int64_t>(batch.labels.size())},
                          torch::kInt64)
      .to(device);
}

class Trainer {
 public:
  Trainer(Worker& worker, Communicator& communicator, const TrainOptions& options,
          const Share& share, torch::Device device, std::shared_ptr<ImageNetwork> net,
          const Dataset& training, const Dataset& validation, DistributedSampler sampler)
      : worker_(worker),
        communicator_(communicator),
        options_(options),
        share_(share),
        device_(device),
        timeout_(options.timeout()),
        training_(training),
        validation_(validation),
        sampler_(std::move(sampler)),
        checkpoints_(options.checkpoint_dir),
        net_(std::move(net)),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(options.learning_rate)
                                           .momentum(options.momentum)
                                           .weight_decay(options.weight_decay)) {}

  Status Run();

 private:
  bool IsFirst() const { return share_.rank == 0; }
  Status Parallelize();
  torch::Tensor Forward(const torch::Tensor& pixels);
  Status AverageGradients();
  Status Resume();
  Status Load(const std::string& path);
  Status Save(bool best);
  Status CopyToBest(const std::string& path) const;
  void DecayLearningRate();
  Status RunEpoch();
  Result<Score> Validate();
  LoaderOptions Loading() const;

  Worker& worker_;
  Communicator& communicator_;
  const TrainOptions& options_;
  const Share share_;
  const torch::Device device_;
  const std::chrono::nanoseconds timeout_;
  const Dataset& training_;
  const Dataset& validation_;
  const DistributedSampler sampler_;
  const CheckpointDirectory checkpoints_;
  const std::shared_ptr<ImageNetwork> net_;
  torch::optim::SGD optimizer_;
  // One of the two is set: for several processes, or for one process with several devices.
  std::unique_ptr<nn::DataParallel<ImageNetwork>> model_;
  std::unique_ptr<nn::ScatterParallel<ImageNetwork>> scattered_;
  // The progress so far: finished epochs, their steps, and the best accuracy.
  int epoch_ = 0;
  int64_t total_steps_ = 0;
  double best_top1_ = 0;
};

Status Trainer::Run() {
  CADRE_RETURN_IF_ERROR(Resume());
  CADRE_RETURN_IF_ERROR(Parallelize());
  if (options_.evaluate_only) return Validate().status();
  while (epoch_ < options_.epochs) {
    DecayLearningRate();
    CADRE_RETURN_IF_ERROR(RunEpoch());
    ++epoch_;
    CADRE_ASSIGN_OR_RETURN(const Score score, Validate());
    const bool best = epoch_ == 1 || score.Top1() > best_top1_;
    best_top1_ = std::max(best_top1_, score.Top1());
    CADRE_RETURN_IF_ERROR(Save(best));
  }
  CADRE_ASSIGN_OR_RETURN(const uint64_t hash, nn::CheckEqualState(communicator_, *net_, timeout_));
  if (IsFirst()) {
    std::printf("best Acc@1 %.3f; parameters equal on %d ranks: %016llx\n", best_top1_,
                share_.world_size, static_cast<unsigned long long>(hash));
  }
  return OkStatus();
}

// As in the template, the only process of a job takes all devices, unless a flag gives it one;
// otherwise each process has its own.
Status Trainer::Parallelize() {
  const JobFlags& job = options_.job;
  if (share_.world_size == 1 && job.gpu < 0 && !job.process_per_gpu) {
    CADRE_ASSIGN_OR_RETURN(scattered_, nn::ScatterParallel<ImageNetwork>::Create(net_));
    std::printf("one process, devices: %zu\n", scattered_->devices().size());
    return OkStatus();
  }
  nn::DataParallelOptions options;
  options.timeout = options.reducer.timeout = timeout_ + kLonger;
  CADRE_ASSIGN_OR_RETURN(model_,
                         nn::DataParallel<ImageNetwork>::Create(net_, communicator_, options));
  return OkStatus();
}

torch::Tensor Trainer::Forward(const torch::Tensor& pixels) {
  return scattered_ != nullptr ? scattered_->forward(pixels) : model_->forward(pixels);
}

// Call it after the backward pass. With several devices the process has all gradients already.
Status Trainer::AverageGradients() {
  return scattered_ != nullptr ? OkStatus() : model_->Finish().status();
}

Status Trainer::Resume() {
  std::string path = options_.resume;
  if (!options_.checkpoint_dir.empty()) {
    CADRE_ASSIGN_OR_RETURN(const NewestCheckpoint newest,
                           LoadNewest(worker_, checkpoints_, timeout_));
    if (!newest.warning.empty() && IsFirst()) std::printf("%s\n", newest.warning.c_str());
    if (newest.checkpoint) path = newest.checkpoint->path;
  }
  if (path.empty()) {
    epoch_ = options_.start_epoch;
    return OkStatus();
  }
  if (IsFirst()) std::printf("=> loading checkpoint '%s'\n", path.c_str());
  CADRE_RETURN_IF_ERROR(Load(path));
  if (IsFirst()) {
    std::printf("=> loaded checkpoint '%s' (epoch %d)\n", path.c_str(), epoch_);
    std::printf("resumed after epoch %d, best Acc@1 %.3f\n", epoch_, best_top1_);
  }
  return OkStatus();
}

Status Trainer::Load(const std::string& path) {
  Status fits;
  const auto read = [&](torch::serialize::InputArchive& archive) {
    c10::IValue arch;
    if (archive.try_read("arch", arch) && arch.toStringRef() != options_.arch) {
      fits = InvalidArgumentError(path + " holds a " + arch.toStringRef() + ", and --arch is " +
                                  options_.arch);
      return;
    }
    torch::serialize::InputArchive model, optimizer;
    // The file holds parameters alone; it comes from another program.
    if (!archive.try_read("model", model)) return net_->load(archive);
    archive.read("optimizer", optimizer);
    torch::Tensor epoch, steps, best_top1;
    archive.read("epoch", epoch);
    archive.read("steps", steps);
    archive.read("best_top1", best_top1);
    net_->load(model);
    optimizer_.load(optimizer);
    epoch_ = epoch.item<int>();
    total_steps_ = steps.item<int64_t>();
    best_top1_ = best_top1.item<double>();
  };
  CADRE_RETURN_IF_ERROR(LoadArchive(path, device_, read));
  return fits;
}

Status Trainer::Save(bool best) {
  if (options_.checkpoint_dir.empty()) return OkStatus();
  const auto write = [&](const std::string& path) {
    torch::serialize::OutputArchive archive;
    torch::serialize::OutputArchive model(archive.compilation_unit());
    torch::serialize::OutputArchive optimizer(archive.compilation_unit());
    net_->save(model);
    optimizer_.save(optimizer);
    archive.write("arch", c10::IValue(options_.arch));
    archive.write("model", model);
    archive.write("optimizer", optimizer);
    archive.write("epoch", torch::tensor(epoch_));
    archive.write("steps", torch::tensor(total_steps_));
    archive.write("best_top1", torch::tensor(best_top1_, torch::kFloat64));
    CADRE_RETURN_IF_ERROR(SaveArchive(archive, path));
    return best ? CopyToBest(path) : OkStatus();
  };
  return SaveCheckpoint(worker_, checkpoints_, total_steps_, write, timeout_);
}

// The file is written under another name first, so that the best one is complete at any moment.
Status Trainer::CopyToBest(const std::string& path) const {
  const std::string copy = options_.checkpoint_dir + "/" + kBestCheckpoint;
  std::error_code error;
  std::filesystem::copy_file(path, copy + ".new", std::filesystem::copy_options::overwrite_existing,
                             error);
  if (!error) std::filesystem::rename(copy + ".new", copy, error);
  if (!error) return OkStatus();
  return UnavailableError(copy + ": " + error.message());
}

void Trainer::DecayLearningRate() {
  const double rate = options_.learning_rate * std::pow(0.1, epoch_ / kEpochsPerDecay);
  for (auto& group : optimizer_.param_groups()) {
    static_cast<torch::optim::SGDOptions&>(group.options()).lr(rate);
  }
}

LoaderOptions Trainer::Loading() const {
  LoaderOptions options;
  options.batch_size = share_.batch_size;
  options.workers = share_.data_workers;
  options.side = options_.side;
  return options;
}

Status Trainer::RunEpoch() {
  LoaderOptions loading = Loading();
  loading.augment = loading.drop_last = true;
  loading.seed = options_.seed + epoch_;
  BatchLoader loader(training_, sampler_.Epoch(epoch_), loading);
  BatchMeters meters;
  net_->train();
  for (int64_t step = 1; step <= loader.batches(); ++step) {
    const Clock::time_point begin = Clock::now();
    CADRE_ASSIGN_OR_RETURN(std::optional<Batch> batch, loader.Next());
    meters.data.Update(Seconds(Clock::now() - begin).count());
    const torch::Tensor labels = LabelsOf(*batch, device_);
    optimizer_.zero_grad();
    const torch::Tensor scores = Forward(PixelsOf(*batch, options_.side, device_));
    const torch::Tensor loss = torch::nn::functional::cross_entropy(scores, labels);
    loss.backward();
    CADRE_RETURN_IF_ERROR(AverageGradients());
    optimizer_.step();
    meters.Update(Score::Of(loss.detach(), scores.detach(), labels));
    meters.time.Update(Seconds(Clock::now() - begin).count());
    ++total_steps_;
    if ((step - 1) % options_.print_every != 0) continue;
    worker_.ReportProgress(total_steps_, labels.size(0) * share_.world_size / meters.time.average(),
                           meters.loss.average());
    if (!IsFirst()) continue;
    const std::string before = "Epoch: [" + std::to_string(epoch_) + "]";
    std::printf("%s\t%s\t%s\t%s\t%s\t%s\n", BatchText(before, step, loader.batches()).c_str(),
                meters.time.Text().c_str(), meters.data.Text().c_str(), meters.loss.Text().c_str(),
                meters.top1.Text().c_str(), meters.top5.Text().c_str());
  }
  return OkStatus();
}

// Each rank evaluates its own part: no picture counts twice.
Result<Score> Trainer::Validate() {
  torch::NoGradGuard no_grad;
  net_->eval();
  // The buffers differ: each rank has averaged over its own pictures since the last exchange.
  CADRE_RETURN_IF_ERROR(nn::BroadcastBuffers(communicator_, *net_, timeout_ + kLonger));
  BatchLoader loader(validation_, EvaluationPart(validation_.size(), share_), Loading());
  BatchMeters meters;
  Score score;
  for (int64_t i = 0; i < loader.batches(); ++i) {
    const Clock::time_point begin = Clock::now();
    CADRE_ASSIGN_OR_RETURN(std::optional<Batch> batch, loader.Next());
    const torch::Tensor labels = LabelsOf(*batch, device_);
    const torch::Tensor pixels = PixelsOf(*batch, options_.side, device_);
    const torch::Tensor scores =
        scattered_ != nullptr ? scattered_->forward(pixels) : net_->forward(pixels);
    const Score one =
        Score::Of(torch::nn::functional::cross_entropy(scores, labels), scores, labels);
    score.Add(one);
    meters.Update(one);
    meters.time.Update(Seconds(Clock::now() - begin).count());
    if (i % options_.print_every != 0 || !IsFirst()) continue;
    std::printf("%s\t%s\t%s\t%s\t%s\n", BatchText("Test: ", i + 1, loader.batches()).c_str(),
                meters.time.Text().c_str(), meters.loss.Text().c_str(), meters.top1.Text().c_str(),
                meters.top5.Text().c_str());
  }
  double sums[] = {score.loss, score.top1, score.top5, score.pictures};
  CADRE_RETURN_IF_ERROR(WaitOrAbort(
      communicator_,
      communicator_.AllReduce({sums, std::size(sums), DataType::kFloat64}, ReduceOp::kSum),
      timeout_ + kLonger));
  score = {sums[0], sums[1], sums[2], sums[3]};
  if (IsFirst()) {
    std::printf(" * Acc@1 %.3f Acc@5 %.3f\n", score.Top1(), score.Top5());
    std::printf("mean loss %.4f on %.0f pictures of all ranks\n", score.Loss(), score.pictures);
  }
  return score;
}

Result<Share> FindShare(const Worker& worker, const TrainOptions& options) {
  const WorkerPlace& place = worker.place();
  CADRE_RETURN_IF_ERROR(CheckJobFlags(options.job, place));
  JobSize job;
  job.nodes = place.nodes;
  job.devices_per_node = place.local_world_size;
  job.batch_size = options.batch_size;
  job.data_workers = options.data_workers;
  CADRE_ASSIGN_OR_RETURN(const Share share, ShareOf(job, place.node_rank, place.local_rank));
  if (share.rank == place.rank && share.world_size == place.world_size) return share;
  std::ostringstream text;
  text << "nodes have different numbers of workers: rank " << place.rank << " of "
       << place.world_size << " is local rank " << place.local_rank << " of "
       << place.local_world_size << " on node " << place.node_rank;
  return FailedPreconditionError(text.str());
}

// Returns this rank's device, and prints which one it is.
Result<torch::Device> FindDevice(const Worker& worker, const TrainOptions& options) {
  const JobFlags& job = options.job;
  const int wanted = job.gpu >= 0 ? job.gpu : worker.place().local_rank;
  CADRE_ASSIGN_OR_RETURN(const torch::Device device, ChooseDevice(options.device, wanted));
  if (device.is_cpu()) {
    if (worker.rank() == 0) std::printf("using CPU, this will be slow\n");
  } else if (job.gpu >= 0 && device.index() != job.gpu) {
    return InvalidArgumentError("--gpu " + std::to_string(job.gpu) + ": there are " +
                                std::to_string(DeviceCount(options.device)) +
                                " GPUs, which count from 0");
  } else {
    std::printf("Use GPU: %d for training\n", static_cast<int>(device.index()));
  }
  if (worker.rank() == 0 && !job.dist_backend.empty()) {
    std::printf("--dist-backend %s: Cadre's own reduces the gradients, in the host's memory\n",
                job.dist_backend.c_str());
  }
  if (worker.rank() == 0 && job.dist_url != JobFlags().dist_url) {
    std::printf("--dist-url %s: not used, the ranks meet through their launcher\n",
                job.dist_url.c_str());
  }
  return device;
}

Result<std::shared_ptr<ImageNetwork>> MakeNet(const Worker& worker, const TrainOptions& options,
                                              int64_t classes, const torch::Device& device) {
  ArchitectureOptions architecture;
  architecture.name = options.arch;
  architecture.classes = classes;
  architecture.side = options.side;
  architecture.blocks = options.blocks;
  architecture.width = options.width;
  if (worker.rank() == 0) std::printf("=> creating model '%s'\n", options.arch.c_str());
  CADRE_ASSIGN_OR_RETURN(std::shared_ptr<ImageNetwork> net, MakeNetwork(architecture));
  net->to(device);
  return net;
}

}  // namespace

Status Train(World& world, const TrainOptions& options) {
  Worker& worker = *world.worker;
  CADRE_ASSIGN_OR_RETURN(const Share share, FindShare(worker, options));
  CADRE_ASSIGN_OR_RETURN(const torch::Device device, FindDevice(worker, options));
  torch::manual_seed(options.seed);
  std::unique_ptr<Dataset> training, validation;
  if (options.data_dir.empty()) {
    training = DrawDataset(options.drawn_pictures, 1);
    validation = DrawDataset(std::max(1, options.drawn_pictures / 5), 2);
  } else {
    CADRE_ASSIGN_OR_RETURN(training, OpenFolder(options.data_dir + "/train"));
    CADRE_ASSIGN_OR_RETURN(validation, OpenFolder(options.data_dir + "/val"));
  }
  if (training->classes() != validation->classes()) {
    return InvalidArgumentError(options.data_dir + ": " + std::to_string(training->classes()) +
                                " classes in train, " + std::to_string(validation->classes()) +
                                " in val; expected the same in both");
  }
  std::printf("rank %d of %d: batches of %d, %d data workers\n", share.rank, share.world_size,
              share.batch_size, share.data_workers);
  SamplerOptions sampling;
  sampling.samples = training->size();
  sampling.world_size = share.world_size;
  sampling.rank = share.rank;
  sampling.seed = options.seed;
  CADRE_ASSIGN_OR_RETURN(DistributedSampler sampler, DistributedSampler::Create(sampling));
  CADRE_ASSIGN_OR_RETURN(std::shared_ptr<ImageNetwork> net,
                         MakeNet(worker, options, training->classes(), device));
  return Trainer(worker, *world.communicator, options, share, device, std::move(net), *training,
                 *validation, std::move(sampler))
      .Run();
}

}  // namespace cadre::imagenet
