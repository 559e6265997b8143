#include "cadre/torch/module_replicas.h"

#include <mutex>

#include "ATen/CPUGeneratorImpl.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/utils.h"

namespace cadre::nn::internal {
namespace {

using torch::autograd::variable_list;

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

}  // namespace

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

}  // namespace cadre::nn::internal
