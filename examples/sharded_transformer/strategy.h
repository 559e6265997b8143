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

// Bytes of parameters, gradients and the optimizer's state that this rank holds.
struct HeldBytes {
  size_t parameters = 0, gradients = 0, state = 0;
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  virtual torch::Tensor Forward(const torch::Tensor& ids) = 0;
  // Collective. Runs the optimizer's step after the backward pass of a loss that the scaler scaled.
  // It uses the average gradients of all ranks, whose norm is clipped to `max_norm`. Returns false,
  // on all ranks, if the scaler left the step out.
  virtual Result<bool> Step(double max_norm) = 0;
  // Returns what this rank held in the last step.
  const HeldBytes& Held() const { return held_; }
  // Collective: rank 0's archives receive the whole model's and the whole optimizer's state, in a
  // form that does not depend on the strategy.
  virtual Status Save(torch::serialize::OutputArchive& model,
                      torch::serialize::OutputArchive& optimizer) = 0;
  // Loads what any strategy with any number of ranks has saved.
  virtual Status Load(torch::serialize::InputArchive& model,
                      torch::serialize::InputArchive& optimizer) = 0;

 protected:
  explicit Strategy(nn::ShardedGradScaler& scaler) : scaler_(scaler) {}

  nn::ShardedGradScaler& scaler_;
  HeldBytes held_;
};

// ddp keeps everything on each rank; oss shards the optimizer's state; sharded also shards the
// gradients; fsdp also shards the parameters; hybrid does the same within each node. The model is a
// new one on that device, trained with AdamW. The world and the scaler, which may be disabled, must
// outlive the strategy. Fails with INVALID_ARGUMENT for any other name.
Result<std::unique_ptr<Strategy>> MakeStrategy(const std::string& name, const Shape& shape,
                                               const torch::Device& device, double learning_rate,
                                               const World& world, nn::ShardedGradScaler& scaler);

}  // namespace cadre::transformer

#endif  // CADRE_EXAMPLES_SHARDED_TRANSFORMER_STRATEGY_H_
