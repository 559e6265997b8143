// The three matrix products of a linear layer. With few samples each costs what it takes to bring
// the weight, or its gradient, through the cache; BLAS goes over it several times and in short
// pieces. So a weight that does not fit the cache is multiplied a block of rows at a time, which
// may add sums in another order than the whole product does. In other cases these are
// torch::addmm() and torch::mm().
#ifndef CADRE_WORKER_RUNTIME_TORCH_LAYER_PRODUCTS_H_
#define CADRE_WORKER_RUNTIME_TORCH_LAYER_PRODUCTS_H_

#include "c10/util/Optional.h"
#include "torch/types.h"
#include "worker_runtime/factored_gradients.h"

namespace cadre::nn {

// `input` and `gradient` have a row for each sample, `weight` one for each output. Not recorded by
// autograd.

// input * weight^T + bias, contiguous.
torch::Tensor LayerOutput(const torch::Tensor& input, const torch::Tensor& weight,
                          const c10::optional<torch::Tensor>& bias);
// gradient * weight.
torch::Tensor LayerInputGradient(const torch::Tensor& gradient, const torch::Tensor& weight);
// gradient^T * input, into `result`, which is contiguous.
void LayerWeightGradient(const torch::Tensor& gradient, const torch::Tensor& input,
                         torch::Tensor& result);

// For ReducerOptions::multiply_factors. INTERNAL: libtorch threw.
absl::Status MultiplyLayerFactors(const FactorProduct& product);

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_LAYER_PRODUCTS_H_
