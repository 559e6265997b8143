#include "cadre/torch/scatter_parallel.h"

#include <algorithm>
#include <exception>
#include <future>
#include <stdexcept>
#include <string>

#include "ATen/ThreadLocalState.h"
#include "c10/core/StreamGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "cadre/torch/autocast.h"
#include "cadre/torch/batch_parts.h"
#include "cadre/torch/guarded.h"
#include "cadre/torch/module_replicas.h"

namespace cadre::nn::internal {
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
  ScatteredPass(const Replicas& replicas, const PartTensors& parts, const ReplicaCall& call,
                const std::vector<torch::Device>& devices)
      : replicas_(replicas), parts_(parts), call_(call), devices_(devices), outputs_(parts.size()) {
    for (size_t i = 0; i < parts.size(); ++i) {
      streams_.push_back(VirtualGuardImpl(devices[i].type()).getStream(devices[i]));
    }
  }

  // What they return. One error is thrown when all have ended.
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
    // The graph may refer to the module, as where a part of it is Checkpointed.
    for (const torch::Tensor& output : outputs_[i]) {
      if (!output.defined() || !output.requires_grad()) continue;
      output.register_hook([replica = replicas_[i]](const torch::Tensor&) {});
    }
  }

  const Replicas& replicas_;
  const PartTensors& parts_;
  const ReplicaCall& call_;
  const std::vector<torch::Device>& devices_;
  // The caller's.
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

}  // namespace cadre::nn::internal
