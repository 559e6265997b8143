#include "train.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <sstream>
#include <utility>

#include "../cifar_resnet50/resnet.h"
#include "cadre/checkpoint.h"
#include "cadre/sampler.h"
#include "cadre/status_macros.h"
#include "cadre/torch/archive_file.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/torch/tensors.h"
#include "cadre/wait_or_abort.h"
#include "dataset.h"
#include "share.h"
#include "torch/nn/functional/loss.h"
#include "torch/optim/sgd.h"
#include "torch/serialize.h"
#include "torch/utils.h"

namespace cadre::imagenet {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// Longer than the communicator's own timeout, whose error names the rank that did not come.
constexpr std::chrono::seconds kLonger(5);
// The learning rate is divided by ten after so many epochs.
constexpr int kEpochsPerDecay = 30;

// Sums over pictures; over all ranks after Sum().
struct Score {
  double loss = 0, top1 = 0, top5 = 0, pictures = 0;

  void Add(const torch::Tensor& mean_loss, const torch::Tensor& scores,
           const torch::Tensor& labels) {
    const int64_t five = std::min<int64_t>(5, scores.size(1));
    const torch::Tensor best = std::get<1>(scores.topk(five, /*dim=*/1));
    const torch::Tensor hits = best.eq(labels.unsqueeze(1));
    const auto count = static_cast<double>(labels.size(0));
    loss += mean_loss.item<double>() * count;
    top1 += hits.select(1, 0).sum().item<double>();
    top5 += hits.sum().item<double>();
    pictures += count;
  }
  double Loss() const { return loss / pictures; }
  double Top1() const { return 100 * top1 / pictures; }
  double Top5() const { return 100 * top5 / pictures; }
};

torch::Tensor PixelsOf(Batch& batch, int side) {
  return torch::from_blob(batch.pixels.data(), {static_cast<int64_t>(batch.labels.size()),
                                                int64_t{kChannels}, int64_t{side}, int64_t{side}});
}

torch::Tensor LabelsOf(Batch& batch) {
  return torch::from_blob(batch.labels.data(), {static_cast<int64_t>(batch.labels.size())},
                          torch::kInt64);
}

class Trainer {
 public:
  Trainer(Worker& worker, Communicator& communicator, const TrainOptions& options,
          const Share& share, const Dataset& training, const Dataset& validation,
          DistributedSampler sampler)
      : worker_(worker),
        communicator_(communicator),
        options_(options),
        share_(share),
        timeout_(options.timeout()),
        training_(training),
        validation_(validation),
        sampler_(std::move(sampler)),
        checkpoints_(options.checkpoint_dir),
        net_(std::make_shared<ResNet>(
            ResNetOptions{training.classes(), options.blocks, options.width})),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(options.learning_rate)
                                           .momentum(options.momentum)
                                           .weight_decay(options.weight_decay)) {}

  Status Run();

 private:
  bool IsFirst() const { return share_.rank == 0; }
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
  const std::chrono::nanoseconds timeout_;
  const Dataset& training_;
  const Dataset& validation_;
  const DistributedSampler sampler_;
  const CheckpointDirectory checkpoints_;
  std::shared_ptr<ResNet> net_;
  torch::optim::SGD optimizer_;
  std::unique_ptr<nn::DataParallel<ResNet>> model_;
  // Epochs that are done, and what they came to.
  int epoch_ = 0;
  int64_t total_steps_ = 0;
  double best_top1_ = 0;
};

Status Trainer::Run() {
  CADRE_RETURN_IF_ERROR(Resume());
  nn::DataParallelOptions options;
  options.timeout = options.reducer.timeout = timeout_ + kLonger;
  CADRE_ASSIGN_OR_RETURN(model_, nn::DataParallel<ResNet>::Create(net_, communicator_, options));
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
  CADRE_ASSIGN_OR_RETURN(const uint64_t hash, model_->CheckParametersEqual(timeout_));
  if (IsFirst()) {
    std::printf("best Acc@1 %.3f; parameters equal on %d ranks: %016llx\n", best_top1_,
                share_.world_size, static_cast<unsigned long long>(hash));
  }
  return OkStatus();
}

Status Trainer::Resume() {
  std::string path = options_.resume;
  if (!options_.checkpoint_dir.empty()) {
    CADRE_ASSIGN_OR_RETURN(const NewestCheckpoint newest,
                           LoadNewest(worker_, checkpoints_, timeout_));
    if (!newest.warning.empty() && IsFirst()) std::printf("%s\n", newest.warning.c_str());
    if (newest.checkpoint) path = newest.checkpoint->path;
  }
  if (path.empty()) return OkStatus();
  CADRE_RETURN_IF_ERROR(Load(path));
  if (IsFirst()) {
    std::printf("resumed after epoch %d, best Acc@1 %.3f\n", epoch_, best_top1_);
  }
  return OkStatus();
}

Status Trainer::Load(const std::string& path) {
  if (!std::filesystem::exists(path)) {
    return NotFoundError(path + ": there is no such checkpoint");
  }
  torch::serialize::InputArchive archive, model, optimizer;
  archive.load_from(path);
  archive.read("model", model);
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
  return OkStatus();
}

Status Trainer::Save(bool best) {
  if (options_.checkpoint_dir.empty()) return OkStatus();
  const auto write = [&](const std::string& path) {
    torch::serialize::OutputArchive archive;
    torch::serialize::OutputArchive model(archive.compilation_unit());
    torch::serialize::OutputArchive optimizer(archive.compilation_unit());
    net_->save(model);
    optimizer_.save(optimizer);
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

// Under another name first, so that the best one is whole at any moment.
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
  Seconds data_time(0), step_time(0);
  Score score;
  int64_t since_line = 0;
  net_->train();
  for (int64_t step = 1; step <= loader.batches(); ++step) {
    const Clock::time_point begin = Clock::now();
    CADRE_ASSIGN_OR_RETURN(std::optional<Batch> batch, loader.Next());
    data_time += Clock::now() - begin;
    const torch::Tensor labels = LabelsOf(*batch);
    optimizer_.zero_grad();
    const torch::Tensor scores = model_->forward(PixelsOf(*batch, options_.side));
    const torch::Tensor loss = torch::nn::functional::cross_entropy(scores, labels);
    loss.backward();
    CADRE_RETURN_IF_ERROR(model_->Finish().status());
    optimizer_.step();
    step_time += Clock::now() - begin;
    score.Add(loss.detach(), scores.detach(), labels);
    ++total_steps_;
    ++since_line;
    if (step % options_.print_every != 0 && step != loader.batches()) continue;
    const double seconds = step_time.count() / since_line;
    worker_.ReportProgress(total_steps_, labels.size(0) * share_.world_size / seconds,
                           score.Loss());
    if (IsFirst()) {
      std::printf(
          "Epoch: [%d][%lld/%lld]  Time %.3f  Data %.3f  Loss %.4f  Acc@1 %.2f  Acc@5 %.2f\n",
          epoch_ + 1, static_cast<long long>(step), static_cast<long long>(loader.batches()),
          seconds, data_time.count() / since_line, score.Loss(), score.Top1(), score.Top5());
    }
    data_time = step_time = Seconds(0);
    since_line = 0;
  }
  return OkStatus();
}

// Each rank looks at its part: no picture counts twice.
Result<Score> Trainer::Validate() {
  torch::NoGradGuard no_grad;
  net_->eval();
  // Each rank has averaged over its own pictures since the last exchange.
  CADRE_RETURN_IF_ERROR(nn::BroadcastBuffers(communicator_, *net_, timeout_ + kLonger));
  CADRE_ASSIGN_OR_RETURN(const EvaluationShard shard,
                         ShardForEvaluation(validation_.size(), share_.world_size, share_.rank));
  std::vector<int64_t> mine(shard.end - shard.begin);
  std::iota(mine.begin(), mine.end(), shard.begin);
  BatchLoader loader(validation_, std::move(mine), Loading());
  Score score;
  for (int64_t i = 0; i < loader.batches(); ++i) {
    CADRE_ASSIGN_OR_RETURN(std::optional<Batch> batch, loader.Next());
    const torch::Tensor labels = LabelsOf(*batch);
    const torch::Tensor scores = net_->forward(PixelsOf(*batch, options_.side));
    score.Add(torch::nn::functional::cross_entropy(scores, labels), scores, labels);
  }
  double sums[] = {score.loss, score.top1, score.top5, score.pictures};
  CADRE_RETURN_IF_ERROR(WaitOrAbort(
      communicator_,
      communicator_.AllReduce({sums, std::size(sums), DataType::kFloat64}, ReduceOp::kSum),
      timeout_ + kLonger));
  score = {sums[0], sums[1], sums[2], sums[3]};
  if (IsFirst()) {
    std::printf(" * Loss %.4f Acc@1 %.3f Acc@5 %.3f on %.0f pictures\n", score.Loss(), score.Top1(),
                score.Top5(), score.pictures);
  }
  return score;
}

Result<Share> FindShare(const Worker& worker, const TrainOptions& options) {
  const WorkerPlace& place = worker.place();
  if (options.nodes != 0 && options.nodes != place.nodes) {
    return InvalidArgumentError("--world-size " + std::to_string(options.nodes) +
                                " is given in nodes, and the job has " +
                                std::to_string(place.nodes));
  }
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

}  // namespace

Status Train(World& world, const TrainOptions& options) {
  Worker& worker = *world.worker;
  CADRE_ASSIGN_OR_RETURN(const Share share, FindShare(worker, options));
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
                                " in val");
  }
  std::printf("rank %d of %d: batches of %d, %d data workers\n", share.rank, share.world_size,
              share.batch_size, share.data_workers);
  SamplerOptions sampling;
  sampling.samples = training->size();
  sampling.world_size = share.world_size;
  sampling.rank = share.rank;
  sampling.seed = options.seed;
  CADRE_ASSIGN_OR_RETURN(DistributedSampler sampler, DistributedSampler::Create(sampling));
  return Trainer(worker, *world.communicator, options, share, *training, *validation,
                 std::move(sampler))
      .Run();
}

}  // namespace cadre::imagenet
