// torch::nn::Linear, except that in a data-parallel model the gradient of its weight is computed
// where it is reduced. libtorch gives every gradient memory that the system has to map and clear
// anew, and from there it is copied; for a wide layer that takes longer than the exchange.
//
//   cadre::nn::Linear hidden = register_module("hidden", cadre::nn::Linear(2048, 2048));
//
// With few samples, products with a large weight are made in blocks that fit the cache
// (layer_products.h): equal to torch::nn::Linear's up to the order of sums. Names and checkpoints
// are the same. Outside of DataParallel it does what torch::nn::Linear does. Without forward-mode
// derivatives.
#ifndef CADRE_WORKER_RUNTIME_TORCH_LINEAR_H_
#define CADRE_WORKER_RUNTIME_TORCH_LINEAR_H_

#include <cstdint>
#include <ostream>

#include "torch/nn/cloneable.h"
#include "torch/nn/options/linear.h"
#include "torch/nn/pimpl.h"
#include "torch/types.h"
#include "worker_runtime/torch/tensors.h"

namespace cadre::nn {

class LinearImpl : public torch::nn::Cloneable<LinearImpl>, public HasFactors {
 public:
  LinearImpl(int64_t in_features, int64_t out_features)
      : LinearImpl(torch::nn::LinearOptions(in_features, out_features)) {}
  explicit LinearImpl(const torch::nn::LinearOptions& options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  torch::Tensor forward(const torch::Tensor& input);
  const torch::Tensor& factored_parameter() const override { return weight; }

  torch::nn::LinearOptions options;
  torch::Tensor weight;
  // Undefined with options.bias(false).
  torch::Tensor bias;
};
TORCH_MODULE(Linear);

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_LINEAR_H_
