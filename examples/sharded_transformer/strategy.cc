#include "strategy.h"

#include <optional>
#include <utility>
#include <vector>

#include "../exceptions/exceptions.h"
#include "cadre/status_macros.h"
#include "cadre/torch/autocast.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/torch/fully_sharded.h"
#include "cadre/torch/hybrid_sharding.h"
#include "cadre/torch/meta_device.h"
#include "cadre/torch/sharded_data_parallel.h"
#include "cadre/torch/sharded_optimizer.h"
#include "gpt.h"
#include "precision.h"
#include "torch/nn/utils/clip_grad.h"
#include "torch/optim/adamw.h"
#include "torch/utils.h"
#include "torch/version.h"

namespace cadre::transformer {
namespace {

using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;

HeldBytes HeldOf(const std::vector<torch::Tensor>& parameters, AdamW& optimizer) {
  HeldBytes held;
  for (const torch::Tensor& parameter : parameters) {
    held.parameters += parameter.nbytes();
    if (parameter.grad().defined()) held.gradients += parameter.grad().nbytes();
  }
  for (const auto& entry : optimizer.state()) {
    const auto& state = static_cast<const AdamWParamState&>(*entry.second);
    held.state += state.exp_avg().nbytes() + state.exp_avg_sq().nbytes();
  }
  return held;
}

// The parameters keep their memory, since wrappers refer to it.
void LoadInto(Gpt& net, torch::serialize::InputArchive& archive) {
  const torch::NoGradGuard no_grad;
  Gpt loaded(net.shape());
  loaded.load(archive);
  const auto from = loaded.parameters(), to = net.parameters();
  for (size_t i = 0; i < to.size(); ++i) torch::Tensor(to[i]).copy_(from[i]);
}

// The scaler itself finds gradients that are not finite and leaves the step out; without a scaler
// they are an error.
nn::DataParallelOptions OptionsWith(const nn::ShardedGradScaler& scaler) {
  nn::DataParallelOptions options;
  if (scaler.enabled()) options.reducer.non_finite = NonFinite::kIgnore;
  return options;
}

class Replicated : public Strategy {
 public:
  static Result<std::unique_ptr<Strategy>> Make(std::shared_ptr<Gpt> net,
                                                const AdamWOptions& options,
                                                Communicator& communicator,
                                                nn::ShardedGradScaler& scaler) {
    std::unique_ptr<Replicated> made(new Replicated(net, options, scaler));
    CADRE_ASSIGN_OR_RETURN(made->model_,
                           nn::DataParallel<Gpt>::Create(net, communicator, OptionsWith(scaler)));
    return std::unique_ptr<Strategy>(std::move(made));
  }

  torch::Tensor Forward(const torch::Tensor& ids) override { return model_->forward(ids); }
  Result<bool> Step(double max_norm) override {
    CADRE_RETURN_IF_ERROR(model_->Finish().status());
    CADRE_RETURN_IF_ERROR(scaler_.Unscale(optimizer_));
    torch::nn::utils::clip_grad_norm_(net_->parameters(), max_norm);
    CADRE_ASSIGN_OR_RETURN(const bool stepped, scaler_.Step(optimizer_));
    held_ = HeldOf(net_->parameters(), optimizer_);
    model_->ZeroGrad();
    return stepped;
  }
  Status Save(torch::serialize::OutputArchive& model,
              torch::serialize::OutputArchive& optimizer) override {
    net_->save(model);
    optimizer_.save(optimizer);
    return OkStatus();
  }
  Status Load(torch::serialize::InputArchive& model,
              torch::serialize::InputArchive& optimizer) override {
    LoadInto(*net_, model);
    optimizer_.load(optimizer);
    return OkStatus();
  }

 private:
  Replicated(std::shared_ptr<Gpt> net, const AdamWOptions& options, nn::ShardedGradScaler& scaler)
      : Strategy(scaler), net_(std::move(net)), optimizer_(net_->parameters(), options) {}

  const std::shared_ptr<Gpt> net_;
  AdamW optimizer_;
  std::unique_ptr<nn::DataParallel<Gpt>> model_;
};

// ShardedDataParallel is a DataParallel, so one class serves both stages.
class ShardedState : public Strategy {
 public:
  static Result<std::unique_ptr<Strategy>> Make(std::shared_ptr<Gpt> net,
                                                const AdamWOptions& options, bool shards_gradients,
                                                Communicator& communicator,
                                                nn::ShardedGradScaler& scaler) {
    std::unique_ptr<ShardedState> made(new ShardedState(net, options, scaler));
    CADRE_ASSIGN_OR_RETURN(made->optimizer_,
                           nn::ShardedOptimizer::Create(*net, made->adam_, communicator));
    if (shards_gradients) {
      CADRE_ASSIGN_OR_RETURN(made->model_, nn::ShardedDataParallel<Gpt>::Create(
                                               net, *made->optimizer_, OptionsWith(scaler)));
    } else {
      CADRE_ASSIGN_OR_RETURN(made->model_,
                             nn::DataParallel<Gpt>::Create(net, communicator, OptionsWith(scaler)));
    }
    return std::unique_ptr<Strategy>(std::move(made));
  }

  torch::Tensor Forward(const torch::Tensor& ids) override { return model_->forward(ids); }
  Result<bool> Step(double max_norm) override {
    CADRE_RETURN_IF_ERROR(model_->Finish().status());
    CADRE_RETURN_IF_ERROR(scaler_.Unscale(*optimizer_));
    CADRE_RETURN_IF_ERROR(optimizer_->ClipGradNorm(max_norm).status());
    CADRE_ASSIGN_OR_RETURN(const bool stepped, scaler_.Step(*optimizer_));
    held_ = HeldOf(net_->parameters(), adam_);
    optimizer_->ZeroGrad();
    return stepped;
  }
  Status Save(torch::serialize::OutputArchive& model,
              torch::serialize::OutputArchive& optimizer) override {
    net_->save(model);
    return optimizer_->SaveState(optimizer);
  }
  Status Load(torch::serialize::InputArchive& model,
              torch::serialize::InputArchive& optimizer) override {
    LoadInto(*net_, model);
    return optimizer_->LoadState(optimizer);
  }

 private:
  ShardedState(std::shared_ptr<Gpt> net, const AdamWOptions& options, nn::ShardedGradScaler& scaler)
      : Strategy(scaler), net_(std::move(net)), adam_(net_->parameters(), options) {}

  const std::shared_ptr<Gpt> net_;
  AdamW adam_;
  std::unique_ptr<nn::ShardedOptimizer> optimizer_;
  std::unique_ptr<nn::DataParallel<Gpt>> model_;
};

// Each replica is shared by so many ranks: those of one node, or all.
class ShardedModel : public Strategy {
 public:
  static Result<std::unique_ptr<Strategy>> Make(std::shared_ptr<Gpt> net,
                                                const torch::Device& device,
                                                const AdamWOptions& options, int replica_ranks,
                                                Communicator& communicator,
                                                nn::ShardedGradScaler& scaler) {
    std::vector<std::string> blocks;
    for (int64_t i = 0; i < net->shape().layers; ++i) blocks.push_back(Gpt::BlockName(i));
    CADRE_ASSIGN_OR_RETURN(nn::HybridGroups groups, nn::SplitByNode(communicator, replica_ranks));
    nn::FullyShardedOptions among;
    among.replicas = groups.replicas.get();
    // With these no rank ever holds the whole model, not even at first.
    among.device = device;
    among.initialize = Gpt::Initialize;
    CADRE_ASSIGN_OR_RETURN(
        auto model, nn::FullySharded<Gpt>::Create(net, blocks, *groups.shards, std::move(among)));
    return std::unique_ptr<Strategy>(
        new ShardedModel(std::move(groups), std::move(model), options, scaler));
  }

  torch::Tensor Forward(const torch::Tensor& ids) override { return model_->forward(ids); }
  Result<bool> Step(double max_norm) override {
    CADRE_RETURN_IF_ERROR(model_->Finish());
    CADRE_RETURN_IF_ERROR(scaler_.Unscale(optimizer_));
    CADRE_RETURN_IF_ERROR(model_->ClipGradNorm(max_norm).status());
    CADRE_ASSIGN_OR_RETURN(const bool stepped, scaler_.Step(*model_, optimizer_));
    held_ = HeldOf(model_->shards(), optimizer_);
    model_->ZeroGrad();
    return stepped;
  }
  Status Save(torch::serialize::OutputArchive& model,
              torch::serialize::OutputArchive& optimizer) override {
    CADRE_RETURN_IF_ERROR(model_->SaveState(model));
    return model_->SaveOptimizerState(optimizer_, optimizer);
  }
  Status Load(torch::serialize::InputArchive& model,
              torch::serialize::InputArchive& optimizer) override {
    CADRE_RETURN_IF_ERROR(model_->LoadState(model));
    return model_->LoadOptimizerState(optimizer_, optimizer);
  }

 private:
  ShardedModel(nn::HybridGroups groups, std::unique_ptr<nn::FullySharded<Gpt>> model,
               const AdamWOptions& options, nn::ShardedGradScaler& scaler)
      : Strategy(scaler),
        groups_(std::move(groups)),
        model_(std::move(model)),
        optimizer_(model_->shards(), options) {}

  const nn::HybridGroups groups_;
  const std::unique_ptr<nn::FullySharded<Gpt>> model_;
  AdamW optimizer_;
};

}  // namespace

Result<std::unique_ptr<Strategy>> MakeStrategy(const std::string& name, const Shape& shape,
                                               const torch::Device& device, double learning_rate,
                                               const World& world, nn::ShardedGradScaler& scaler) {
  const AdamWOptions options = AdamWOptions(learning_rate).weight_decay(0.01);
  Communicator& communicator = *world.communicator;
  std::shared_ptr<Gpt> net;
  {
    const nn::OnMetaDevice without_memory;
    net = std::make_shared<Gpt>(shape);
  }
  if (name == "fsdp" || name == "hybrid") {
    const int replica_ranks =
        name == "hybrid" ? world.worker->place().local_world_size : communicator.size();
    return ShardedModel::Make(std::move(net), device, options, replica_ranks, communicator, scaler);
  }
  CADRE_RETURN_IF_ERROR(nn::InitializeOn(*net, device, Gpt::Initialize));
  if (name == "ddp") return Replicated::Make(std::move(net), options, communicator, scaler);
  if (name == "oss" || name == "sharded") {
    return ShardedState::Make(std::move(net), options, name == "sharded", communicator, scaler);
  }
  return InvalidArgumentError("there is no strategy '" + name +
                              "'; expected ddp, oss, sharded, fsdp or hybrid");
}

namespace {

std::string NameOf(torch::ScalarType type) {
  return type == torch::kFloat16 ? "float16" : type == torch::kBFloat16 ? "bfloat16" : "float32";
}

}  // namespace

Result<torch::ScalarType> TypeNamed(const std::string& precision) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kFloat16}) {
    if (precision == NameOf(type)) return type;
  }
  return InvalidArgumentError("--precision " + precision +
                              ": expected float32, bfloat16 or float16");
}

torch::Tensor ForwardIn(torch::ScalarType type, const torch::Device& device,
                        const std::function<torch::Tensor()>& forward) {
  std::optional<nn::Autocast> in_16_bits;
  if (type != torch::kFloat32) in_16_bits.emplace(device.type(), type);
  return forward().to(torch::kFloat32);
}

Status CheckTrains(const torch::Device& device, torch::ScalarType type) {
  if (type == torch::kFloat32) return OkStatus();
  const Status trained = WithoutExceptions([&] {
    Gpt net({/*layers=*/1, /*width=*/8, /*heads=*/2, /*context=*/1, /*vocabulary=*/1});
    net.to(device);
    const torch::Tensor ids =
        torch::zeros({1, 1}, torch::TensorOptions(device).dtype(torch::kLong));
    ForwardIn(type, device, [&] { return net.forward(ids); }).sum().backward();
    return OkStatus();
  });
  if (trained.ok()) return OkStatus();
  return FailedPreconditionError("--precision " + NameOf(type) +
                                 ": libtorch " TORCH_VERSION " cannot train the model in it on " +
                                 device.str() + " (" + trained.message() +
                                 "); take a newer libtorch, another precision, or a GPU");
}

}  // namespace cadre::transformer
