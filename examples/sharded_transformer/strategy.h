// The ways to train one model on several ranks that the example shows, behind one interface.
// Includes libtorch.
#ifndef CADRE_EXAMPLES_SHARDED_TRANSFORMER_STRATEGY_H_
#define CADRE_EXAMPLES_SHARDED_TRANSFORMER_STRATEGY_H_

#include <cstddef>
#include <memory>
#include <string>

#include "cadre/connect.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/torch/sharded_grad_scaler.h"
#include "gpt.h"
#include "torch/serialize.h"
#include "torch/types.h"

namespace cadre::transformer {

// Of parameters, gradients and the optimizer's state that are on this rank.
struct HeldBytes {
  size_t parameters = 0, gradients = 0, state = 0;
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  virtual torch::Tensor Forward(const torch::Tensor& ids) = 0;
  // After the backward pass of a loss that the scaler scaled: the optimizer's step with the average
  // gradients of all ranks, whose norm is at most `max_norm` then. Collective. False on all ranks:
  // the scaler left the step out.
  virtual Result<bool> Step(double max_norm) = 0;
  // In the last step.
  const HeldBytes& Held() const { return held_; }
  // Collective: rank 0's archives get the whole model's and the whole optimizer's state, the same
  // whatever the strategy.
  virtual Status Save(torch::serialize::OutputArchive& model,
                      torch::serialize::OutputArchive& optimizer) = 0;
  // Of any strategy and number of ranks.
  virtual Status Load(torch::serialize::InputArchive& model,
                      torch::serialize::InputArchive& optimizer) = 0;

 protected:
  explicit Strategy(nn::ShardedGradScaler& scaler) : scaler_(scaler) {}

  nn::ShardedGradScaler& scaler_;
  HeldBytes held_;
};

// ddp: everything on each rank. oss: the optimizer's state is sharded; sharded: the gradients, too;
// fsdp: the parameters, too; hybrid: the same within each node. The model is a new one, on that
// device; AdamW. The world and the scaler, which may be one that is not enabled, must outlive it.
// INVALID_ARGUMENT: it is none of these.
Result<std::unique_ptr<Strategy>> MakeStrategy(const std::string& name, const Shape& shape,
                                               const torch::Device& device, double learning_rate,
                                               const World& world, nn::ShardedGradScaler& scaler);

}  // namespace cadre::transformer

#endif  // CADRE_EXAMPLES_SHARDED_TRANSFORMER_STRATEGY_H_
