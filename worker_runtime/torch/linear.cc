#include "worker_runtime/torch/linear.h"

#include <cmath>
#include <utility>
#include <vector>

#include "ATen/autocast_mode.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/autograd/graph_task.h"
#include "torch/nn/functional/linear.h"
#include "torch/nn/init.h"
#include "torch/utils.h"
#include "worker_runtime/torch/gradient_hooks.h"
#include "worker_runtime/torch/layer_products.h"

namespace cadre::nn {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Undefined where it is computed later, from the factors that were taken.
Tensor WeightGradient(const Tensor& gradient, const Tensor& input, const Tensor& weight) {
  // Not for torch::autograd::grad(), whose caller keeps the result, nor for derivatives of it.
  const auto* only = torch::autograd::get_current_graph_task_exec_info();
  const bool to_all = !torch::GradMode::is_enabled() && only != nullptr && only->empty();
  const GradientHooks::Awaiting awaiting =
      to_all ? GradientHooks::Of(weight) : GradientHooks::Awaiting();
  if (awaiting.hooks == nullptr) return torch::mm(gradient.t(), input);
  if (awaiting.hooks->OfferFactors(awaiting.index, gradient, input)) return {};
  Tensor place = awaiting.hooks->ClaimPlace(awaiting.index);
  if (!place.defined()) return torch::mm(gradient.t(), input);
  LayerWeightGradient(gradient, input, place);
  return place;
}

Tensor InputGradient(const Tensor& gradient, const Tensor& weight) {
  // With gradients on, autograd records how the gradient comes about.
  if (torch::GradMode::is_enabled()) return torch::mm(gradient, weight);
  return LayerInputGradient(gradient, weight);
}

// Of a matrix with a row for each sample.
struct Affine : torch::autograd::Function<Affine> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight,
                        const c10::optional<Tensor>& bias) {
    context->save_for_backward({input, weight});
    context->saved_data["biased"] = bias.has_value();
    return LayerOutput(input, weight, bias);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor& gradient = gradients[0];
    variable_list result(3);
    if (context->needs_input_grad(0)) result[0] = InputGradient(gradient, saved[1]);
    if (context->needs_input_grad(1)) result[1] = WeightGradient(gradient, saved[0], saved[1]);
    const bool biased = context->saved_data["biased"].toBool();
    if (biased && context->needs_input_grad(2)) result[2] = gradient.sum(0);
    return result;
  }
};

}  // namespace

LinearImpl::LinearImpl(const torch::nn::LinearOptions& options) : options(options) { reset(); }

void LinearImpl::reset() {
  weight =
      register_parameter("weight", torch::empty({options.out_features(), options.in_features()}));
  bias = register_parameter(
      "bias", options.bias() ? torch::empty({options.out_features()}) : Tensor(), options.bias());
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0));
  if (!bias.defined()) return;
  const double bound = 1 / std::sqrt(static_cast<double>(options.in_features()));
  torch::nn::init::uniform_(bias, -bound, bound);
}

void LinearImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "cadre::nn::Linear(in_features=" << options.in_features()
         << ", out_features=" << options.out_features() << ", bias=" << options.bias() << ")";
}

Tensor LinearImpl::forward(const Tensor& input) {
  if (input.dim() < 2 || !torch::GradMode::is_enabled() || at::autocast::is_cpu_enabled() ||
      GradientHooks::Of(weight).hooks == nullptr) {
    return torch::nn::functional::linear(input, weight, bias);
  }
  const c10::optional<Tensor> offset = bias.defined() ? c10::make_optional(bias) : c10::nullopt;
  if (input.dim() == 2) return Affine::apply(input, weight, offset);
  std::vector<int64_t> shape = input.sizes().vec();
  shape.back() = options.out_features();
  return Affine::apply(input.flatten(0, -2), weight, offset).view(shape);
}

}  // namespace cadre::nn
