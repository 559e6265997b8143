#include "train.h"

#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "../device/device.h"
#include "../mnist_cnn/digits.h"
#include "../mnist_cnn/net.h"
#include "../mnist_cnn/samples.h"
#include "cadre/sampler.h"
#include "cadre/status_macros.h"
#include "cadre/wait_or_abort.h"
#include "gpu.h"
#include "torch/nn/functional/loss.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"

namespace cadre {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int64_t kEvaluationBatch = 500;

class Training {
 public:
  Training(Communicator& gpus, const TrainOptions& options, mnist::Samples train,
           mnist::Samples test, DistributedSampler sampler, std::shared_ptr<mnist::Net> net)
      : gpus_(gpus),
        options_(options),
        train_(std::move(train)),
        test_(std::move(test)),
        sampler_(std::move(sampler)),
        net_(std::move(net)),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(options.learning_rate)
                                           .momentum(options.momentum)
                                           .weight_decay(options.weight_decay)) {}

  Status Run() {
    CADRE_ASSIGN_OR_RETURN(memory_,
                           gpus_.AllocateBuffer(static_cast<size_t>(Parameters().nbytes())));
    for (int epoch = 0; epoch < options_.epochs; ++epoch) {
      CADRE_RETURN_IF_ERROR(RunEpoch(epoch));
    }
    return CheckParametersEqual();
  }

 private:
  bool IsFirst() const { return gpus_.rank() == 0; }

  // Returns all parameters as one flat tensor.
  torch::Tensor Parameters() const {
    std::vector<torch::Tensor> flat;
    for (const torch::Tensor& parameter : net_->parameters()) {
      flat.push_back(parameter.detach().flatten());
    }
    return torch::cat(flat);
  }

  // Reduces in place, over all ranks, through the GPU's memory.
  Status Reduce(torch::Tensor& numbers, ReduceOp op) {
    const auto bytes = static_cast<size_t>(numbers.nbytes());
    const Buffer buffer = {memory_.get(), static_cast<size_t>(numbers.numel()), DataType::kFloat32};
    CADRE_RETURN_IF_ERROR(CopyBytes(memory_.get(), numbers.data_ptr(), bytes));
    CADRE_RETURN_IF_ERROR(WaitOrAbort(gpus_, gpus_.AllReduce(buffer, op), options_.timeout));
    return CopyBytes(numbers.data_ptr(), memory_.get(), bytes);
  }

  Status RunEpoch(int epoch) {
    const Clock::time_point begin = Clock::now();
    if (IsFirst()) std::printf("Starting Epoch %d:\n", epoch);
    const std::vector<int64_t> mine = sampler_.Epoch(epoch);
    // The sums are loss and hits.
    torch::Tensor sums = torch::zeros({2});
    for (const torch::Tensor& batch : torch::tensor(mine).split(options_.batch_size)) {
      CADRE_RETURN_IF_ERROR(Step(batch.to(train_.labels.device()), sums));
    }
    CADRE_RETURN_IF_ERROR(Reduce(sums, ReduceOp::kSum));
    CADRE_ASSIGN_OR_RETURN(const double accuracy, Evaluate());
    if (!IsFirst()) return OkStatus();
    std::printf("Training loss = %f, training accuracy = %f\n", sums[0].item<float>(),
                sums[1].item<double>() / static_cast<double>(sampler_.size() * gpus_.size()));
    std::printf("Evaluation accuracy = %f, Elapsed Time = %fs\n", accuracy,
                Seconds(Clock::now() - begin).count());
    return OkStatus();
  }

  Status Step(const torch::Tensor& batch, torch::Tensor& sums) {
    const torch::Tensor labels = train_.labels.index_select(0, batch);
    optimizer_.zero_grad();
    const torch::Tensor scores = net_->forward(train_.images.index_select(0, batch));
    const torch::Tensor loss = torch::nn::functional::cross_entropy(scores, labels);
    loss.backward();
    sums += torch::tensor({loss.item<float>(), scores.argmax(1).eq(labels).sum().item<float>()});
    CADRE_RETURN_IF_ERROR(AverageGradients());
    optimizer_.step();
    return OkStatus();
  }

  Status AverageGradients() {
    const std::vector<torch::Tensor> parameters = net_->parameters();
    std::vector<torch::Tensor> flat;
    for (const torch::Tensor& parameter : parameters) flat.push_back(parameter.grad().flatten());
    torch::Tensor all = torch::cat(flat);
    CADRE_RETURN_IF_ERROR(Reduce(all, ReduceOp::kAverage));
    int64_t at = 0;
    for (const torch::Tensor& parameter : parameters) {
      parameter.grad().copy_(all.narrow(0, at, parameter.numel()).view_as(parameter));
      at += parameter.numel();
    }
    return OkStatus();
  }

  // Each rank evaluates every n-th image: no image counts twice.
  Result<double> Evaluate() {
    const torch::NoGradGuard no_grad;
    torch::Tensor hits = torch::zeros({1});
    const torch::Tensor mine = torch::arange(gpus_.rank(), test_.size(), gpus_.size());
    for (const torch::Tensor& part : mine.split(kEvaluationBatch)) {
      const torch::Tensor batch = part.to(test_.labels.device());
      const torch::Tensor scores = net_->forward(test_.images.index_select(0, batch));
      hits += scores.argmax(1).eq(test_.labels.index_select(0, batch)).sum().item<float>();
    }
    CADRE_RETURN_IF_ERROR(Reduce(hits, ReduceOp::kSum));
    return hits.item<double>() / static_cast<double>(test_.size());
  }

  // If every rank's parameters equal the element-wise maximum over the ranks, all ranks' are equal.
  Status CheckParametersEqual() {
    const torch::Tensor own = Parameters();
    torch::Tensor largest = own.clone();
    CADRE_RETURN_IF_ERROR(Reduce(largest, ReduceOp::kMax));
    torch::Tensor differing = torch::full({1}, largest.equal(own) ? 0.0f : 1.0f);
    CADRE_RETURN_IF_ERROR(Reduce(differing, ReduceOp::kSum));
    if (differing.item<float>() != 0) return DataLossError("the ranks' parameters differ");
    if (IsFirst()) std::printf("parameters equal on %d ranks\n", gpus_.size());
    return OkStatus();
  }

  Communicator& gpus_;
  const TrainOptions& options_;
  const mnist::Samples train_, test_;
  const DistributedSampler sampler_;
  const std::shared_ptr<mnist::Net> net_;
  torch::optim::SGD optimizer_;
  std::shared_ptr<void> memory_;  // of the GPU, for all gradients
};

}  // namespace

Status Train(Communicator& gpus, const TrainOptions& options) {
  CADRE_ASSIGN_OR_RETURN(const torch::Device device, ChooseDevice("", gpus.rank()));
  // The processes share the machine's cores.
  if (gpus.size() > 1) torch::set_num_threads(1);
  std::string directory = options.data_dir;
  if (directory.empty()) {
    CADRE_ASSIGN_OR_RETURN(directory, mnist::DrawnDigitsDirectory());
  }
  CADRE_ASSIGN_OR_RETURN(auto train, mnist::LoadSamples(directory, "train", options.limit, device));
  CADRE_ASSIGN_OR_RETURN(auto test, mnist::LoadSamples(directory, "t10k", 0, device));
  SamplerOptions sampling;
  sampling.samples = train.size();
  sampling.world_size = gpus.size();
  sampling.rank = gpus.rank();
  sampling.seed = options.seed;
  CADRE_ASSIGN_OR_RETURN(auto sampler, DistributedSampler::Create(sampling));
  // All ranks use the same seed, so that they begin with the same parameters.
  torch::manual_seed(options.seed);
  auto net = std::make_shared<mnist::Net>();
  net->to(device);
  return Training(gpus, options, std::move(train), std::move(test), std::move(sampler),
                  std::move(net))
      .Run();
}

}  // namespace cadre
