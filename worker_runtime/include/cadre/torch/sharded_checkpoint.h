// A rank's part of a FullySharded model and its optimizer, or of a model whose optimizer is
// sharded, for a checkpoint in which each rank writes its own part (cadre/sharded_checkpoint.h) or
// keeps it in memory (cadre/memory_checkpoint.h).
//
//   CADRE_ASSIGN_OR_RETURN(auto state, cadre::nn::ShardsOf(*model, adam, cursor_bytes));
//   CADRE_RETURN_IF_ERROR(checkpoint->Save(step, state));
//   ...
//   CADRE_ASSIGN_OR_RETURN(auto latest, checkpoint->Latest());
//   if (latest) {
//     CADRE_RETURN_IF_ERROR(cadre::nn::LoadShards(*model, adam, latest->shards, &cursor_bytes));
//   }
//
// It has parameters, including frozen ones, buffers, and the state and the options of the
// optimizer, by the parameters' names, so it can be loaded by any number of ranks, with any units,
// and in any ZeRO stage.
#ifndef CADRE_TORCH_SHARDED_CHECKPOINT_H_
#define CADRE_TORCH_SHARDED_CHECKPOINT_H_

#include <string>
#include <utility>

#include "cadre/result.h"
#include "cadre/sharded_state.h"
#include "cadre/status.h"
#include "cadre/torch/fully_sharded.h"
#include "cadre/torch/sharded_optimizer.h"
#include "torch/nn/module.h"
#include "torch/optim/optimizer.h"

namespace cadre::nn {

// Call between steps; not collective. On the host it refers to the tensors themselves, which may be
// changed again once ShardedCheckpoint's Save(), or MemoryCheckpoint's Wait(), has returned. Of
// tensors on devices it has copies, for which this waits. `extra` is the program's own data: the
// same on all ranks, of which rank 0's is written.
//   INVALID_ARGUMENT  naming the parameter and the rank: the optimizer is not over the model's
//                     shards
//   UNIMPLEMENTED     the optimizer is not one of libtorch's own
Result<ShardedState> ShardsOf(FullyShardedParts& parts, torch::optim::Optimizer& optimizer,
                              std::string extra);
template <typename Module>
Result<ShardedState> ShardsOf(FullySharded<Module>& model, torch::optim::Optimizer& optimizer,
                              std::string extra = {}) {
  return ShardsOf(model.parts(), optimizer, std::move(extra));
}

// Call between steps, on all ranks; not collective. Each rank reads its own part, and temporarily
// holds it twice. Gradients are unchanged. Groups' options are loaded if libtorch's load() does so,
// from 2.x on. `extra` may be null. On an error nothing is changed:
//   INVALID_ARGUMENT  naming the parameter and the rank: the state is of another model (names,
//                     shapes, types) or another kind of optimizer; a state in memory that this rank
//                     has not saved, or has saved with other units
//   DATA_LOSS         naming the file: it is damaged
Status LoadShards(FullyShardedParts& parts, torch::optim::Optimizer& optimizer,
                  const SavedShards& saved, std::string* extra);
template <typename Module>
Status LoadShards(FullySharded<Module>& model, torch::optim::Optimizer& optimizer,
                  const SavedShards& saved, std::string* extra = nullptr) {
  return LoadShards(model.parts(), optimizer, saved, extra);
}

// Likewise for ZeRO stages 1 and 2: all ranks have all parameters, each written by its owner, and
// each rank has the optimizer state of its own parameters. A state in memory must be loaded by a
// rank that owns the same parameters.
//   INVALID_ARGUMENT  also: the module is not the optimizer's
Result<ShardedState> ShardsOf(const torch::nn::Module& module, ShardedOptimizer& optimizer,
                              std::string extra = {});
Status LoadShards(torch::nn::Module& module, ShardedOptimizer& optimizer, const SavedShards& saved,
                  std::string* extra = nullptr);

}  // namespace cadre::nn

#endif  // CADRE_TORCH_SHARDED_CHECKPOINT_H_
