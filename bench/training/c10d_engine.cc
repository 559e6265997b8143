// c10d's own C++ reducer, driven as Python's DistributedDataParallel of torch 1.13 drives it.
#include <algorithm>
#include <limits>
#include <utility>

#include "bench/training/engine.h"
#include "torch/csrc/distributed/c10d/FileStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"
#include "torch/csrc/distributed/c10d/logger.hpp"
#include "torch/csrc/distributed/c10d/reducer.hpp"

namespace cadre::bench {
namespace {

class C10d : public Engine {
 public:
  C10d(Worker& worker, std::shared_ptr<Model> model, const std::string& folder, bool drops)
      : model_(std::move(model)), parameters_(model_->parameters()), drops_(drops) {
    auto store = c10::make_intrusive<c10d::FileStore>(folder + "/store", worker.world_size());
    auto options = c10d::ProcessGroupGloo::Options::create();
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, worker.rank(),
                                                             worker.world_size(), options);
    const std::vector<bool> sparse(parameters_.size(), false);
    auto [indices, limits] = c10d::compute_bucket_assignment_by_size(
        parameters_, {std::numeric_limits<int>::max()}, sparse);
    std::reverse(indices.begin(), indices.end());
    std::reverse(limits.begin(), limits.end());
    reducer_ = std::make_shared<c10d::Reducer>(
        parameters_, indices, limits, group, sparse, c10d::kDefaultBucketBytesCap,
        /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/true,
        std::unordered_map<size_t, std::string>(), c10d::kDefaultFirstBucketBytes);
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    reducer_->set_logger(logger_);
    logger_->set_construction_data_and_log("model", {}, -1, true, false, false);
  }

  void ZeroGrad() override {
    for (torch::Tensor& parameter : parameters_) {
      if (!parameter.grad().defined()) continue;
      if (drops_) {
        parameter.mutable_grad().reset();
      } else {
        parameter.mutable_grad().zero_();
      }
    }
  }
  torch::Tensor Forward(const torch::Tensor& input) override {
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
    torch::Tensor output = model_->forward(input);
    reducer_->prepare_for_backward({});
    return output;
  }
  // The reducer has waited at the end of the backward pass.
  bool Finish() override { return true; }

 private:
  const std::shared_ptr<Model> model_;
  std::vector<torch::Tensor> parameters_;
  const bool drops_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
};

}  // namespace

std::unique_ptr<Engine> MakeC10dEngine(Worker& worker, std::shared_ptr<Model> model,
                                       const std::string& folder, bool drops_gradients) {
  return std::make_unique<C10d>(worker, std::move(model), folder, drops_gradients);
}

}  // namespace cadre::bench
