#include "cadre/torch/checkpointed.h"

#include <algorithm>
#include <mutex>
#include <sstream>
#include <string>

#include "ATen/Context.h"
#include "ATen/core/Generator.h"
#include "cadre/torch/autocast.h"
#include "cadre/torch/device_stream.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/saved_variable.h"
#include "torch/csrc/autograd/variable.h"
#include "worker_runtime/torch/recomputation.h"

namespace cadre::nn::internal {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;
// The pointer type of autograd nodes: std::shared_ptr until about 2.10, then c10's intrusive
// pointer.
using NodePointer = decltype(torch::autograd::impl::grad_accumulator(torch::Tensor()));

// Returns an undefined generator if libtorch has none for the device.
at::Generator GeneratorOf(torch::Device device) {
  try {
    return at::globalContext().defaultGenerator(device);
  } catch (const c10::Error&) {
    return at::Generator();
  }
}

// The random states of the host's generator and of devices' generators.
class RandomState {
 public:
  explicit RandomState(std::vector<torch::Device> devices) {
    devices.emplace_back(torch::kCPU);
    for (const torch::Device device : devices) {
      at::Generator generator = GeneratorOf(device);
      if (!generator.defined()) continue;
      const std::lock_guard<std::mutex> lock(generator.mutex());
      states_.emplace_back(generator, generator.get_state());
    }
  }
  void Restore() const {
    for (auto [generator, state] : states_) {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state);
    }
  }

 private:
  std::vector<std::pair<at::Generator, torch::Tensor>> states_;
};

// Makes the generators continue from `state` while the object lives.
class RandomFrom {
 public:
  RandomFrom(const std::optional<RandomState>& state, const std::vector<torch::Device>& devices) {
    if (!state) return;
    before_.emplace(devices);
    state->Restore();
  }
  ~RandomFrom() {
    if (before_) before_->Restore();
  }
  RandomFrom(const RandomFrom&) = delete;
  RandomFrom& operator=(const RandomFrom&) = delete;

 private:
  std::optional<RandomState> before_;
};

// Gives the buffers other memory with the same values while the object lives. The values are not
// copied back, since autograd would take that for a change of tensors that it has saved.
class BuffersAside {
 public:
  explicit BuffersAside(const std::vector<torch::Tensor>& buffers) {
    for (const torch::Tensor& buffer : buffers) {
      before_.emplace_back(buffer, buffer.detach());
      before_.back().first.set_data(buffer.detach().clone());
    }
  }
  ~BuffersAside() {
    // The order is reversed because one buffer may be in several modules.
    for (auto one = before_.rbegin(); one != before_.rend(); ++one) {
      one->first.set_data(one->second);
    }
  }
  BuffersAside(const BuffersAside&) = delete;
  BuffersAside& operator=(const BuffersAside&) = delete;

 private:
  std::vector<std::pair<torch::Tensor, torch::Tensor>> before_;
};

// An input that is kept for the second run.
class KeptInput {
 public:
  KeptInput(const torch::Tensor& input, bool offload) {
    if (!input.defined()) return;
    requires_grad_ = input.requires_grad();
    if (!offload || input.device().is_cpu()) {
      saved_ = torch::autograd::SavedVariable(input, /*is_output=*/false);
      return;
    }
    device_ = input.device();
    host_ = EmptyPinned(*device_, input.sizes(), input.scalar_type());
    host_.copy_(input.detach(), /*non_blocking=*/true);
  }

  // Returns the input as a leaf of a new graph.
  torch::Tensor Detached() const {
    torch::Tensor input = device_ ? host_.to(*device_, /*non_blocking=*/true) : saved_.unpack();
    return input.defined() ? input.detach().set_requires_grad(requires_grad_) : input;
  }

 private:
  bool requires_grad_ = false;
  torch::autograd::SavedVariable saved_;
  std::optional<torch::Device> device_;
  torch::Tensor host_;
};

std::string KindOfTensor(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::ostringstream text;
  text << tensor.scalar_type() << " " << tensor.sizes();
  return text.str();
}

std::vector<torch::Device> DevicesOf(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Device> devices;
  for (const torch::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.device().is_cpu()) continue;
    if (std::find(devices.begin(), devices.end(), tensor.device()) == devices.end()) {
      devices.push_back(tensor.device());
    }
  }
  return devices;
}

// The autograd node of one checkpointed call.
class CheckpointNode : public Node {
 public:
  CheckpointNode(TensorFunction function, std::vector<torch::Tensor> inputs,
                 const CheckpointOptions& options)
      : function_(std::move(function)),
        devices_(DevicesOf(inputs)),
        host_autocast_(CurrentAutocast(torch::kCPU)) {
    if (options.preserve_random) random_.emplace(devices_);
    if (!devices_.empty() && HasAutocast(devices_[0].type())) {
      device_autocast_ = CurrentAutocast(devices_[0].type());
    }
    for (const torch::nn::Module* const module : options.modules) {
      for (const torch::Tensor& buffer : module->buffers()) {
        if (buffer.defined()) buffers_.push_back(buffer);
      }
    }
    torch::autograd::edge_list edges;
    for (const torch::Tensor& input : inputs) {
      kept_.emplace_back(input, options.offload_to_host);
      edges.push_back(input.defined() ? torch::autograd::impl::gradient_edge(input)
                                      : torch::autograd::Edge());
    }
    set_next_edges(std::move(edges));
  }

  std::string name() const override { return "CheckpointedBackward"; }
  void release_variables() override {
    kept_.clear();
    released_ = true;
  }

  std::vector<torch::Tensor> FirstRun(const std::vector<torch::Tensor>& inputs) {
    const torch::NoGradGuard no_grad;
    // Autocast's cache is off: its copies would be made without a graph, and later operators that
    // need one would use them.
    const Autocast without_copies(torch::kCPU,
                                  {host_autocast_.enabled, host_autocast_.type, /*cache=*/false});
    std::vector<torch::Tensor> outputs = function_(inputs);
    for (const torch::Tensor& output : outputs) outputs_.push_back(KindOfTensor(output));
    return outputs;
  }

 protected:
  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(!released_,
                "Checkpointed: an earlier backward pass has released this graph: give that pass "
                "retain_graph");
    TORCH_CHECK(torch::autograd::Engine::get_default_engine().is_checkpoint_valid(),
                "Checkpointed: gradients with respect to given inputs (torch::autograd::grad(), "
                "backward(inputs)) are not possible: call backward() without inputs");
    std::vector<torch::Tensor> inputs;
    for (const KeptInput& kept : kept_) inputs.push_back(kept.Detached());
    // The buffers also stay aside during the backward pass, which may use them.
    const BuffersAside aside(buffers_);
    const std::vector<torch::Tensor> outputs = SecondRun(inputs);
    variable_list roots, of_roots;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      of_roots.push_back(gradients[i]);
    }
    if (!roots.empty()) {
      InnerBackward inner;
      torch::autograd::backward(roots, of_roots);
      inner.End();
    }
    variable_list result;
    for (const torch::Tensor& input : inputs) {
      result.push_back(input.defined() ? input.grad() : torch::Tensor());
    }
    return result;
  }

 private:
  std::vector<torch::Tensor> SecondRun(const std::vector<torch::Tensor>& inputs) {
    const torch::AutoGradMode with_grad(true);
    const Recomputing recomputing;
    const RandomFrom random(random_, devices_);
    const Autocast on_host(torch::kCPU, host_autocast_);
    std::optional<Autocast> on_device;
    if (device_autocast_) on_device.emplace(devices_[0].type(), *device_autocast_);
    std::vector<torch::Tensor> outputs = function_(inputs);
    TORCH_CHECK(outputs.size() == outputs_.size(), "Checkpointed: the first run returned ",
                outputs_.size(), " tensors, and the second ", outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      TORCH_CHECK(KindOfTensor(outputs[i]) == outputs_[i], "Checkpointed: tensor ", i,
                  " that the first run returned was ", outputs_[i], ", and that of the second is ",
                  KindOfTensor(outputs[i]), "; the function must do the same both times");
    }
    return outputs;
  }

  const TensorFunction function_;
  const std::vector<torch::Device> devices_;
  const AutocastState host_autocast_;
  std::optional<AutocastState> device_autocast_;
  std::optional<RandomState> random_;
  std::vector<torch::Tensor> buffers_;
  std::vector<KeptInput> kept_;
  bool released_ = false;
  // Describes the outputs of the first run.
  std::vector<std::string> outputs_;
};

template <typename Pointer, typename Made, typename... Args>
std::pair<Pointer, Made*> MakeNode(Args&&... args) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>) {
    auto* const made = new Made(std::forward<Args>(args)...);
    // deleteNode() is found by argument-dependent lookup, in the releases that have it.
    return {Pointer(made, [](auto* node) { deleteNode(node); }), made};
  } else {
    auto made = c10::make_intrusive<Made>(std::forward<Args>(args)...);
    auto* const address = made.get();
    return {Pointer(std::move(made)), address};
  }
}

}  // namespace

std::vector<torch::Tensor> RunCheckpointed(TensorFunction function,
                                           std::vector<torch::Tensor> inputs,
                                           const CheckpointOptions& options) {
  const auto [pointer, node] =
      MakeNode<NodePointer, CheckpointNode>(std::move(function), inputs, options);
  std::vector<torch::Tensor> outputs = node->FirstRun(inputs);
  for (torch::Tensor& output : outputs) {
    if (!output.defined()) {
      node->add_input_metadata(Node::undefined_input());
      continue;
    }
    // The function may return one of its inputs unchanged.
    output = output.detach();
    if (output.is_floating_point() || output.is_complex()) {
      torch::autograd::create_gradient_edge(output, pointer);
    } else {
      node->add_input_metadata(Node::undefined_input());
    }
  }
  return outputs;
}

}  // namespace cadre::nn::internal
