// Reading what is in a sharded checkpoint; for its own sources alone.
#ifndef CADRE_TORCH_SHARDED_CHECKPOINT_SHARD_READING_H_
#define CADRE_TORCH_SHARDED_CHECKPOINT_SHARD_READING_H_

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cadre/sharded_state.h"
#include "cadre/status.h"
#include "torch/nn/module.h"
#include "torch/types.h"

namespace cadre::nn {

// What becomes what, once everything is read.
using LoadedTensors = std::vector<std::pair<torch::Tensor, torch::Tensor>>;

// INVALID_ARGUMENT: what is saved as `name`, which errors show as `shown`, is another tensor.
// Nobody keeps anything of one without elements.
Status CheckTensor(const SavedShards& saved, const std::string& name, const std::string& shown,
                   torch::ScalarType type, torch::IntArrayRef shape);

// A tensor that is whole, on the host.
Status ReadWhole(const SavedShards& saved, const std::string& name, const std::string& shown,
                 torch::ScalarType type, torch::IntArrayRef shape, torch::Tensor* read);

// Empty where there is none.
Status ReadText(const SavedShards& saved, const std::string& name, std::string* text);

// The buffers go behind what is loaded already, their names into `known`.
Status ReadBuffers(const SavedShards& saved, const torch::nn::Module& module, LoadedTensors* loaded,
                   std::set<std::string>* known);

// INVALID_ARGUMENT: it has a parameter or a buffer that is none of these.
Status CheckNoOthers(const SavedShards& saved, const std::set<std::string>& known);

// What the caller is told where something could not be read, which `who` begins: what libtorch
// threw, INTERNAL, is INVALID_ARGUMENT, since what it cannot read is another state.
Status NotRead(const Status& status, const std::string& who);

}  // namespace cadre::nn

#endif  // CADRE_TORCH_SHARDED_CHECKPOINT_SHARD_READING_H_
