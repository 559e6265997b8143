#include "cadre/torch/scatter_parallel.h"

#include <algorithm>
#include <exception>
#include <future>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/ThreadLocalState.h"
#include "c10/core/StreamGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "cadre/torch/autocast.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/utils.h"

namespace cadre::nn::internal {
namespace {

using c10::impl::VirtualGuardImpl;
using torch::autograd::variable_list;
// Each replica's tensors, the first device's first.
using Parts = std::vector<std::vector<torch::Tensor>>;
using Replicas = std::vector<std::shared_ptr<torch::nn::Module>>;

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

// All of the kind that the module is on.
std::vector<torch::Device> DevicesLike(const std::vector<torch::Tensor>& tensors) {
  const torch::Device device = tensors.empty() ? torch::kCPU : tensors[0].device();
  if (device.is_cpu()) return {device};
  std::vector<torch::Device> devices;
  const auto count = VirtualGuardImpl(device.type()).deviceCount();
  for (c10::DeviceIndex i = 0; i < count; ++i) devices.emplace_back(device.type(), i);
  return devices;
}

// A device without a number is the calling thread's current one.
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

// Those of the arguments that are cut have as many; -1: none is.
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

Parts Scatter(const std::vector<torch::Tensor>& inputs, const ScatterParallelOptions& options) {
  const auto devices = static_cast<int64_t>(options.devices.size());
  const int64_t samples = CountSamples(inputs, options.dimension);
  // As torch::chunk() has it.
  const int64_t each = std::max<int64_t>((samples + devices - 1) / devices, 1);
  Parts parts(static_cast<size_t>(std::max<int64_t>((samples + each - 1) / each, 1)));
  for (size_t i = 0; i < parts.size(); ++i) {
    const torch::Device device = options.devices[i];
    for (const torch::Tensor& input : inputs) {
      torch::Tensor part = input;
      if (part.defined() && part.dim() > 0 && parts.size() > 1) {
        const int64_t first = static_cast<int64_t>(i) * each;
        part = part.narrow(options.dimension, first, std::min(each, samples - first));
      }
      if (part.defined()) part = part.to(device, part.scalar_type(), !device.is_cpu());
      parts[i].push_back(std::move(part));
    }
  }
  return parts;
}

// While it lives, somebody may draw of the host's random numbers, and nobody sees it.
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

// Copies on other devices, whose gradients are those of the original. They are summed in the order
// of the devices, so that a step has the same bits each time.
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
  // Cloning makes all of them leaves that require gradients.
  for (const torch::Tensor& copy : copies) copy.set_requires_grad(false);
  if (!original.requires_grad() || !torch::GradMode::is_enabled()) return;
  const variable_list linked = CopiesOf::apply(original, copies);
  for (size_t i = 0; i < copies.size(); ++i) {
    torch::autograd::impl::set_gradient_edge(copies[i],
                                             torch::autograd::impl::gradient_edge(linked[i]));
  }
}

// The module, and its copies on the other devices.
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

// What a thread's operators do, for other threads to do the same.
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
  // Before 2.4 not among the above.
  const AutocastState on_host_, on_device_;
};

// One forward pass on several devices.
class ScatteredPass {
 public:
  ScatteredPass(const Replicas& replicas, const Parts& parts, const ReplicaCall& call,
                const std::vector<torch::Device>& devices)
      : replicas_(replicas), parts_(parts), call_(call), devices_(devices), outputs_(parts.size()) {
    for (size_t i = 0; i < parts.size(); ++i) {
      streams_.push_back(VirtualGuardImpl(devices[i].type()).getStream(devices[i]));
    }
  }

  // What they return. One error is thrown when all have ended.
  Parts Run() {
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
    // The graph may refer to the module, as where a part of it is Checkpointed.
    for (const torch::Tensor& output : outputs_[i]) {
      if (!output.defined() || !output.requires_grad()) continue;
      output.register_hook([replica = replicas_[i]](const torch::Tensor&) {});
    }
  }

  const Replicas& replicas_;
  const Parts& parts_;
  const ReplicaCall& call_;
  const std::vector<torch::Device>& devices_;
  // The caller's.
  std::vector<c10::Stream> streams_;
  Parts outputs_;
};

torch::Tensor Join(const std::vector<torch::Tensor>& parts, const ScatterParallelOptions& options) {
  std::vector<torch::Tensor> there;
  bool has_dimensions = false;
  for (const torch::Tensor& part : parts) {
    TORCH_CHECK(part.defined(), "ScatterParallel: one part returned a tensor and another none");
    has_dimensions = has_dimensions || part.dim() > 0;
    const torch::Tensor moved = part.to(*options.output_device);
    there.push_back(moved.dim() > 0 ? moved : moved.reshape({1}));
  }
  return torch::cat(there, has_dimensions ? options.dimension : 0);
}

std::vector<torch::Tensor> Gather(const Parts& outputs, const ScatterParallelOptions& options) {
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
    joined.push_back(is_there ? Join(parts, options) : torch::Tensor());
  }
  return joined;
}

}  // namespace

Result<ScatterParallelOptions> PrepareScatter(const torch::nn::Module& module,
                                              ScatterParallelOptions options) {
  std::vector<torch::Tensor> tensors = module.parameters();
  for (const torch::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  if (options.devices.empty()) options.devices = DevicesLike(tensors);
  for (torch::Device& device : options.devices) device = WithNumber(device);
  const torch::Device first = options.devices[0];
  options.output_device = WithNumber(options.output_device.value_or(first));
  CADRE_RETURN_IF_ERROR(CheckDevices(options.devices));
  CADRE_RETURN_IF_ERROR(CheckOnDevice("parameter", module.named_parameters(), first));
  CADRE_RETURN_IF_ERROR(CheckOnDevice("buffer", module.named_buffers(), first));
  return options;
}

std::vector<torch::Tensor> RunScattered(const std::shared_ptr<torch::nn::Module>& module,
                                        const ScatterParallelOptions& options,
                                        const std::vector<torch::Tensor>& inputs,
                                        const ReplicaCall& call) {
  const Parts parts = Scatter(inputs, options);
  if (options.devices.size() == 1) {
    std::vector<torch::Tensor> outputs = call(*module, parts[0]);
    for (torch::Tensor& output : outputs) {
      if (output.defined()) output = output.to(*options.output_device);
    }
    return outputs;
  }
  const Replicas replicas = Replicate(module, options.devices, parts.size());
  return Gather(ScatteredPass(replicas, parts, call, options.devices).Run(), options);
}

}  // namespace cadre::nn::internal
