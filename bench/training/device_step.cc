// A training step on a GPU, or on the CPU, alone and with the gradients averaged by DataParallel:
// the median of each, in milliseconds. device_step.py is the same step with PyTorch's DDP.
//
//   cadre run ... device_step MODEL DEVICE SHAPE BATCH STEPS STRATEGY RESULT
//
// MODEL is resnet50 or transformer; DEVICE cpu, or cuda, of which each rank takes the one of its
// number, in turn where there are fewer; SHAPE full, or tiny for a try on a CPU; STRATEGY ddp, with
// plain SGD; bf16, the same with gradients that travel as bfloat16; sharded, with Adam,
// ShardedDataParallel and ShardedOptimizer; fsdp, with Adam and FullySharded, the transformer's
// blocks being its units; offload, the same with its parts in the host's memory; or hybrid, the
// same with two ranks to a replica. Rank 0 writes its figures to RESULT.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/Context.h"
#include "bench/training/models.h"
#include "bench/training/transformer.h"
#include "cadre/connect.h"
#include "cadre/hooks/sixteen_bit.h"
#include "cadre/status_macros.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/torch/fully_sharded.h"
#include "cadre/torch/fused_adam.h"
#include "cadre/torch/hybrid_sharding.h"
#include "cadre/torch/sharded_data_parallel.h"
#include "cadre/torch/sharded_optimizer.h"
#include "torch/cuda.h"
#include "torch/nn/functional/loss.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"

namespace cadre::bench {
namespace {

constexpr int kWarmUp = 5;
constexpr std::chrono::minutes kTimeout(2);
constexpr int kRanksOfReplica = 2;
constexpr const char* kStrategies[] = {"ddp", "bf16", "sharded", "fsdp", "offload", "hybrid"};

struct Options {
  std::string model, device;
  bool tiny = false;
  int64_t batch = 0;
  int steps = 0;
  std::string strategy;
  std::string result;
};

bool WithPlainSgd(const Options& options) {
  return options.strategy == "ddp" || options.strategy == "bf16";
}

// A batch: the network makes of the input one row of logits for each label.
struct Task {
  torch::Tensor input, labels;
};

Task ResNetTask(const Options& options, torch::Device device) {
  const int64_t side = options.tiny ? 64 : 224;
  return {torch::randn({options.batch, 3, side, side}, device),
          torch::randint(1000, {options.batch}, torch::TensorOptions(torch::kLong).device(device))};
}

Task TransformerTask(const Options& options, const TransformerShape& shape, torch::Device device) {
  const auto words = [&](torch::IntArrayRef sizes) {
    return torch::randint(shape.vocabulary, sizes,
                          torch::TensorOptions(torch::kLong).device(device));
  };
  return {words({options.batch, shape.context}), words({options.batch * shape.context})};
}

void Synchronize(torch::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

// The median of a step, in milliseconds.
template <typename Step>
Result<double> Median(int steps, torch::Device device, const Step& step) {
  std::vector<double> times;
  for (int i = 0; i < kWarmUp + steps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    CADRE_RETURN_IF_ERROR(step());
    Synchronize(device);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (i >= kWarmUp) times.push_back(took.count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

Status Write(const Options& options, const World& world, int64_t parameters, double alone,
             double step) {
  FILE* const file = std::fopen(options.result.c_str(), "w");
  if (file == nullptr) return UnavailableError("cannot write " + options.result);
  std::fprintf(file,
               "{\"ranks\": %d, \"batch\": %lld, \"parameters\": %lld, \"alone_ms\": %.3f, "
               "\"step_ms\": %.3f}\n",
               world.worker->world_size(), static_cast<long long>(options.batch),
               static_cast<long long>(parameters), alone, step);
  return std::fclose(file) == 0 ? OkStatus() : UnavailableError("cannot write " + options.result);
}

using Backward = std::function<void(const torch::Tensor& logits)>;

// Of a step with all ranks.
template <typename Module>
Result<double> StepDataParallel(const Options& options, const World& world,
                                const std::shared_ptr<Module>& module, const Task& task,
                                const Backward& backward) {
  torch::optim::SGD optimizer(module->parameters(), torch::optim::SGDOptions(1e-3));
  nn::DataParallelOptions averaging;
  if (options.strategy == "bf16") averaging.reducer.hook = hooks::Bf16Hook();
  CADRE_ASSIGN_OR_RETURN(auto model,
                         nn::DataParallel<Module>::Create(module, *world.communicator, averaging));
  CADRE_ASSIGN_OR_RETURN(const double step,
                         Median(options.steps, task.input.device(), [&]() -> Status {
                           model->ZeroGrad();
                           backward(model->forward(task.input));
                           CADRE_RETURN_IF_ERROR(model->Finish().status());
                           optimizer.step();
                           return OkStatus();
                         }));
  // Buffers are compared, too: batch normalization's running averages are each rank's own.
  if (module->buffers().empty()) {
    CADRE_RETURN_IF_ERROR(model->CheckParametersEqual(kTimeout).status());
  }
  return step;
}

template <typename Module>
Result<double> StepSharded(const Options& options, const World& world,
                           const std::shared_ptr<Module>& module, const Task& task,
                           const Backward& backward) {
  nn::FusedAdam adam(module->parameters(), torch::optim::AdamOptions(1e-3));
  CADRE_ASSIGN_OR_RETURN(auto optimizer,
                         nn::ShardedOptimizer::Create(*module, adam, *world.communicator));
  CADRE_ASSIGN_OR_RETURN(auto model, nn::ShardedDataParallel<Module>::Create(module, *optimizer));
  return Median(options.steps, task.input.device(), [&]() -> Status {
    backward(model->forward(task.input));
    CADRE_RETURN_IF_ERROR(model->Finish().status());
    return optimizer->Step();
  });
}

template <typename Module>
Result<double> StepFullySharded(const Options& options, const World& world,
                                const std::shared_ptr<Module>& module, const Task& task,
                                const Backward& backward) {
  std::vector<std::string> units;
  for (const auto& child : module->named_children()) {
    if (child.key().rfind("block", 0) == 0) units.push_back(child.key());
  }
  nn::FullyShardedOptions sharding;
  sharding.offload_to_host = options.strategy == "offload";
  std::optional<nn::HybridGroups> groups;
  if (options.strategy == "hybrid") {
    CADRE_ASSIGN_OR_RETURN(groups, nn::SplitByNode(*world.communicator, kRanksOfReplica));
    sharding.replicas = groups->replicas.get();
  }
  CADRE_ASSIGN_OR_RETURN(
      auto model, nn::FullySharded<Module>::Create(
                      module, units, groups ? *groups->shards : *world.communicator, sharding));
  nn::FusedAdam adam(model->shards(), torch::optim::AdamOptions(1e-3));
  return Median(options.steps, task.input.device(), [&]() -> Status {
    model->ZeroGrad();
    backward(model->forward(task.input));
    CADRE_RETURN_IF_ERROR(model->Finish());
    return model->Step(adam);
  });
}

template <typename Module>
Result<double> StepWithAll(const Options& options, const World& world,
                           const std::shared_ptr<Module>& module, const Task& task,
                           const Backward& backward) {
  if (WithPlainSgd(options)) return StepDataParallel(options, world, module, task, backward);
  if (options.strategy == "sharded") return StepSharded(options, world, module, task, backward);
  return StepFullySharded(options, world, module, task, backward);
}

template <typename Module>
Result<double> StepAlone(const Options& options, const std::shared_ptr<Module>& module,
                         const Task& task, const Backward& backward) {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (!WithPlainSgd(options)) {
    optimizer =
        std::make_unique<nn::FusedAdam>(module->parameters(), torch::optim::AdamOptions(1e-3));
  } else {
    optimizer =
        std::make_unique<torch::optim::SGD>(module->parameters(), torch::optim::SGDOptions(1e-3));
  }
  return Median(options.steps, task.input.device(), [&]() -> Status {
    optimizer->zero_grad();
    backward(module->forward(task.input));
    optimizer->step();
    return OkStatus();
  });
}

template <typename Module>
Status Measure(const Options& options, const World& world, std::shared_ptr<Module> module,
               torch::Device device, const Task& task) {
  module->to(device);
  const Backward backward = [&](const torch::Tensor& logits) {
    torch::nn::functional::cross_entropy(logits, task.labels).backward();
  };
  CADRE_ASSIGN_OR_RETURN(const double alone, StepAlone(options, module, task, backward));
  module->zero_grad(/*set_to_none=*/true);
  int64_t parameters = 0;
  for (const torch::Tensor& parameter : module->parameters()) parameters += parameter.numel();
  CADRE_ASSIGN_OR_RETURN(const double step, StepWithAll(options, world, module, task, backward));
  if (world.worker->rank() != 0) return OkStatus();
  return Write(options, world, parameters, alone, step);
}

Status Run(const Options& options) {
  CommunicatorOptions communication;
  communication.timeout = kTimeout;
  CADRE_ASSIGN_OR_RETURN(const World world, Connect(communication));
  torch::Device device(torch::kCPU);
  if (options.device == "cuda") {
    const int gpus = static_cast<int>(torch::cuda::device_count());
    if (gpus == 0) return FailedPreconditionError("libtorch finds no GPU");
    device = torch::Device(
        torch::kCUDA, static_cast<torch::DeviceIndex>(world.worker->place().local_rank % gpus));
  }
  at::globalContext().setFloat32MatmulPrecision("high");
  torch::manual_seed(world.worker->rank());
  if (options.model == "resnet50") {
    return Measure(options, world, std::make_shared<ResNet50>(), device,
                   ResNetTask(options, device));
  }
  TransformerShape shape;
  if (options.tiny) shape = {2, 64, 4, 512, 64};
  return Measure(options, world, std::make_shared<Transformer>(shape), device,
                 TransformerTask(options, shape, device));
}

int Fail(const std::string& what) {
  // libtorch adds a backtrace.
  std::fprintf(stderr, "device_step: %s\n", what.substr(0, what.find('\n')).c_str());
  return 1;
}

bool Parse(int argc, char** argv, Options* options) {
  if (argc != 8) return false;
  options->model = argv[1];
  options->device = argv[2];
  options->tiny = std::string(argv[3]) == "tiny";
  options->batch = std::atoi(argv[4]);
  options->steps = std::atoi(argv[5]);
  options->strategy = argv[6];
  options->result = argv[7];
  const bool known = std::any_of(std::begin(kStrategies), std::end(kStrategies),
                                 [&](const char* name) { return options->strategy == name; });
  return (options->model == "resnet50" || options->model == "transformer") &&
         (options->device == "cpu" || options->device == "cuda") && known && options->batch > 0 &&
         options->steps > 0;
}

}  // namespace
}  // namespace cadre::bench

int main(int argc, char** argv) {
  cadre::bench::Options options;
  if (!cadre::bench::Parse(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: device_step resnet50|transformer cpu|cuda full|tiny BATCH STEPS "
                 "ddp|bf16|sharded|fsdp|offload|hybrid RESULT\n");
    return 64;
  }
  try {
    const cadre::Status status = cadre::bench::Run(options);
    return status.ok() ? 0 : cadre::bench::Fail(status.ToString());
  } catch (const std::exception& error) {
    return cadre::bench::Fail(error.what());
  }
}
