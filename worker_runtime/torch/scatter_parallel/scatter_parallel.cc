#include "cadre/torch/scatter_parallel.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/ThreadLocalState.h"
#include "c10/core/StreamGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "cadre/torch/autocast.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/utils.h"
#include "worker_runtime/torch/guarded.h"

namespace cadre::nn::internal {

// A batch is split into parts, each on one device, and the outputs are joined. Gradients flow back
// the same ways.

// The tensors of each part, in the order of the devices.
using PartTensors = std::vector<std::vector<torch::Tensor>>;

// Returns at least one part, and at most one per device. Splits, and throws, as
// ScatterParallel::forward() documents.
PartTensors Scatter(const std::vector<torch::Tensor>& inputs,
                    const std::vector<torch::Device>& devices, int64_t dimension);
std::vector<torch::Tensor> Gather(const PartTensors& outputs, torch::Device device,
                                  int64_t dimension);

// Copies of a module on other devices, whose gradients are the module's own.
using Replicas = std::vector<std::shared_ptr<torch::nn::Module>>;

// Returns the module, which is on the first device, and its clone() on each of the others, `count`
// in all. Throws c10::Error if it cannot be cloned, or its clone has other parameters.
Replicas Replicate(const std::shared_ptr<torch::nn::Module>& module,
                   const std::vector<torch::Device>& devices, size_t count);

namespace {

using c10::impl::VirtualGuardImpl;

Status CheckDevices(const std::vector<torch::Device>& devices) {
  for (size_t i = 1; i < devices.size(); ++i) {
    if (devices[i].type() != devices[0].type()) {
      return InvalidArgumentError("devices of two kinds: " + devices[0].str() + " and " +
                                  devices[i].str());
    }
    if (std::find(devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(i), devices[i]) !=
        devices.begin() + static_cast<std::ptrdiff_t>(i)) {
      return InvalidArgumentError("device " + devices[i].str() + " is named twice");
    }
  }
  return OkStatus();
}

// Returns all devices of the kind that the module is on.
std::vector<torch::Device> DevicesLike(const std::vector<torch::Tensor>& tensors) {
  const torch::Device device = tensors.empty() ? torch::kCPU : tensors[0].device();
  if (device.is_cpu()) return {device};
  std::vector<torch::Device> devices;
  const auto count = VirtualGuardImpl(device.type()).deviceCount();
  for (c10::DeviceIndex i = 0; i < count; ++i) devices.emplace_back(device.type(), i);
  return devices;
}

// A device without an index means the calling thread's current one.
torch::Device WithNumber(torch::Device device) {
  if (device.is_cpu()) return torch::kCPU;
  return device.has_index() ? device : VirtualGuardImpl(device.type()).getDevice();
}

template <typename Named>
Status CheckOnDevice(const char* kind, const Named& tensors, torch::Device device) {
  for (const auto& tensor : tensors) {
    if (!tensor.value().defined() || tensor.value().device() == device) continue;
    return InvalidArgumentError(std::string(kind) + " '" + tensor.key() + "' is on " +
                                tensor.value().device().str() + ", and the first device is " +
                                device.str());
  }
  return OkStatus();
}

// The thread-local settings that affect operators, to be applied in other threads.
class ThreadState {
 public:
  explicit ThreadState(torch::DeviceType type)
      : type_(type), on_host_(CurrentAutocast(torch::kCPU)), on_device_(CurrentAutocast(type)) {}

  template <typename Body>
  void Run(const Body& body) const {
    const at::ThreadLocalStateGuard local(local_);
    const Autocast on_host(torch::kCPU, on_host_);
    std::optional<Autocast> on_device;
    if (HasAutocast(type_)) on_device.emplace(type_, on_device_);
    body();
  }

 private:
  const torch::DeviceType type_;
  const at::ThreadLocalState local_;
  // Before 2.4 autocast is not part of the state above.
  const AutocastState on_host_, on_device_;
};

// One forward pass on several devices.
class ScatteredPass {
 public:
  ScatteredPass(const Replicas& replicas, const PartTensors& parts, const ReplicaCall& call,
                const std::vector<torch::Device>& devices)
      : replicas_(replicas), parts_(parts), call_(call), devices_(devices), outputs_(parts.size()) {
    for (size_t i = 0; i < parts.size(); ++i) {
      streams_.push_back(VirtualGuardImpl(devices[i].type()).getStream(devices[i]));
    }
  }

  // Returns the outputs of the replicas. One of their exceptions is thrown when all have ended.
  PartTensors Run() {
    const ThreadState state(devices_[0].type());
    std::vector<std::future<void>> others;
    for (size_t i = 1; i < parts_.size(); ++i) {
      others.push_back(std::async(std::launch::async,
                                  [this, &state, i] { state.Run([this, i] { RunOne(i); }); }));
    }
    std::exception_ptr error;
    const auto attempt = [&error](const auto& step) {
      try {
        step();
      } catch (...) {
        if (error == nullptr) error = std::current_exception();
      }
    };
    attempt([this] { RunOne(0); });
    for (std::future<void>& other : others) attempt([&other] { other.get(); });
    if (error != nullptr) std::rethrow_exception(error);
    return std::move(outputs_);
  }

 private:
  void RunOne(size_t i) {
    try {
      const c10::StreamGuard on(streams_[i]);
      outputs_[i] = call_(*replicas_[i], parts_[i]);
    } catch (c10::Error& error) {
      error.add_context("on " + devices_[i].str());
      throw;
    } catch (const std::exception& error) {
      std::throw_with_nested(std::runtime_error("on " + devices_[i].str() + ": " + error.what()));
    }
    if (i == 0) return;
    // The graph may refer to the replica, for example if a part of it is Checkpointed, so the hook
    // keeps the replica alive.
    for (const torch::Tensor& output : outputs_[i]) {
      if (!output.defined() || !output.requires_grad()) continue;
      output.register_hook([replica = replicas_[i]](const torch::Tensor&) {});
    }
  }

  const Replicas& replicas_;
  const PartTensors& parts_;
  const ReplicaCall& call_;
  const std::vector<torch::Device>& devices_;
  // The calling thread's current streams.
  std::vector<c10::Stream> streams_;
  PartTensors outputs_;
};

}  // namespace

Result<ScatterParallelOptions> PrepareScatter(const torch::nn::Module& module,
                                              ScatterParallelOptions options) {
  std::vector<torch::Tensor> tensors = module.parameters();
  for (const torch::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  CADRE_RETURN_IF_ERROR(Guarded("ScatterParallel", [&] {
    if (options.devices.empty()) options.devices = DevicesLike(tensors);
    for (torch::Device& device : options.devices) device = WithNumber(device);
    options.output_device = WithNumber(options.output_device.value_or(options.devices[0]));
    return CheckDevices(options.devices);
  }));
  const torch::Device first = options.devices[0];
  CADRE_RETURN_IF_ERROR(CheckOnDevice("parameter", module.named_parameters(), first));
  CADRE_RETURN_IF_ERROR(CheckOnDevice("buffer", module.named_buffers(), first));
  return options;
}

std::vector<torch::Tensor> RunScattered(const std::shared_ptr<torch::nn::Module>& module,
                                        const ScatterParallelOptions& options,
                                        const std::vector<torch::Tensor>& inputs,
                                        const ReplicaCall& call) {
  const PartTensors parts = Scatter(inputs, options.devices, options.dimension);
  if (options.devices.size() == 1) {
    std::vector<torch::Tensor> outputs = call(*module, parts[0]);
    for (torch::Tensor& output : outputs) {
      if (output.defined()) output = output.to(*options.output_device);
    }
    return outputs;
  }
  const Replicas replicas = Replicate(module, options.devices, parts.size());
  return Gather(ScatteredPass(replicas, parts, call, options.devices).Run(), *options.output_device,
                options.dimension);
}

namespace {

// Returns how many samples the arguments to be split have; all have the same number. -1 if none is
// to be split.
int64_t CountSamples(const std::vector<torch::Tensor>& inputs, int64_t dimension) {
  int64_t samples = -1;
  for (const torch::Tensor& input : inputs) {
    if (!input.defined() || input.dim() == 0) continue;
    const int64_t here = input.size(dimension);
    TORCH_CHECK(samples < 0 || here == samples, "ScatterParallel: arguments have ", samples,
                " and ", here, " samples in dimension ", dimension);
    samples = here;
  }
  return samples;
}

torch::Tensor Join(const std::vector<torch::Tensor>& parts, torch::Device device,
                   int64_t dimension) {
  std::vector<torch::Tensor> there;
  bool has_dimensions = false;
  for (const torch::Tensor& part : parts) {
    TORCH_CHECK(part.defined(), "ScatterParallel: one part returned a tensor and another none");
    has_dimensions = has_dimensions || part.dim() > 0;
    const torch::Tensor moved = part.to(device);
    there.push_back(moved.dim() > 0 ? moved : moved.reshape({1}));
  }
  return torch::cat(there, has_dimensions ? dimension : 0);
}

}  // namespace

PartTensors Scatter(const std::vector<torch::Tensor>& inputs,
                    const std::vector<torch::Device>& devices, int64_t dimension) {
  const auto count = static_cast<int64_t>(devices.size());
  const int64_t samples = CountSamples(inputs, dimension);
  // The parts have the sizes that torch::chunk() gives them.
  const int64_t each = std::max<int64_t>((samples + count - 1) / count, 1);
  PartTensors parts(static_cast<size_t>(std::max<int64_t>((samples + each - 1) / each, 1)));
  for (size_t i = 0; i < parts.size(); ++i) {
    const torch::Device device = devices[i];
    for (const torch::Tensor& input : inputs) {
      torch::Tensor part = input;
      if (part.defined() && part.dim() > 0 && parts.size() > 1) {
        const int64_t first = static_cast<int64_t>(i) * each;
        part = part.narrow(dimension, first, std::min(each, samples - first));
      }
      if (part.defined()) part = part.to(device, part.scalar_type(), !device.is_cpu());
      parts[i].push_back(std::move(part));
    }
  }
  return parts;
}

std::vector<torch::Tensor> Gather(const PartTensors& outputs, torch::Device device,
                                  int64_t dimension) {
  std::vector<torch::Tensor> joined;
  for (size_t t = 0; t < outputs[0].size(); ++t) {
    std::vector<torch::Tensor> parts;
    bool is_there = false;
    for (const auto& output : outputs) {
      TORCH_CHECK(output.size() == outputs[0].size(), "ScatterParallel: one part returned ",
                  outputs[0].size(), " tensors, and another ", output.size());
      is_there = is_there || output[t].defined();
      parts.push_back(output[t]);
    }
    joined.push_back(is_there ? Join(parts, device, dimension) : torch::Tensor());
  }
  return joined;
}

namespace {

using torch::autograd::variable_list;

// Restores the host's random state at its end, so that numbers drawn meanwhile have no effect.
class UnseenRandom {
 public:
  UnseenRandom() : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~UnseenRandom() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state_);
  }
  UnseenRandom(const UnseenRandom&) = delete;
  UnseenRandom& operator=(const UnseenRandom&) = delete;

 private:
  at::Generator generator_;
  torch::Tensor state_;
};

// Copies on other devices, whose gradients are added to the original's in the order of the devices,
// so that a step has the same bits each time.
struct CopiesOf : torch::autograd::Function<CopiesOf> {
  static variable_list forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& original, const variable_list& copies) {
    context->saved_data["device"] = original.device();
    context->set_materialize_grads(false);
    variable_list linked;
    for (const torch::Tensor& copy : copies) linked.push_back(copy.detach());
    return linked;
  }
  static variable_list backward(torch::autograd::AutogradContext* context,
                                variable_list gradients) {
    const torch::Device device = context->saved_data["device"].toDevice();
    torch::Tensor sum;
    for (const torch::Tensor& gradient : gradients) {
      // A part of the batch need not use every parameter.
      if (!gradient.defined()) continue;
      sum = sum.defined() ? sum + gradient.to(device) : gradient.to(device);
    }
    return {sum, torch::Tensor()};
  }
};

void LinkCopies(const torch::Tensor& original, const variable_list& copies) {
  // Cloning the module has made each copy a leaf that requires gradients. This is undone: the
  // gradients reach the originals by the edges that are set below.
  for (const torch::Tensor& copy : copies) copy.set_requires_grad(false);
  if (!original.requires_grad() || !torch::GradMode::is_enabled()) return;
  const variable_list linked = CopiesOf::apply(original, copies);
  for (size_t i = 0; i < copies.size(); ++i) {
    torch::autograd::impl::set_gradient_edge(copies[i],
                                             torch::autograd::impl::gradient_edge(linked[i]));
  }
}

}  // namespace

// Returns the module, and its copies on the other devices.
Replicas Replicate(const std::shared_ptr<torch::nn::Module>& module,
                   const std::vector<torch::Device>& devices, size_t count) {
  Replicas replicas = {module};
  std::vector<variable_list> parameters = {module->parameters()};
  const UnseenRandom unseen;
  for (size_t i = 1; i < count; ++i) {
    replicas.push_back(module->clone(devices[i]));
    parameters.push_back(replicas[i]->parameters());
    TORCH_CHECK(parameters[i].size() == parameters[0].size(), "ScatterParallel: the module has ",
                parameters[0].size(), " parameters, its clone ", parameters[i].size());
  }
  for (size_t p = 0; p < parameters[0].size(); ++p) {
    variable_list copies;
    for (size_t i = 1; i < count; ++i) copies.push_back(parameters[i][p]);
    LinkCopies(parameters[0][p], copies);
  }
  return replicas;
}

}  // namespace cadre::nn::internal
