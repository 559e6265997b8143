// How the tensors of a sharded model are named in a checkpoint; for its own sources alone.
#ifndef CADRE_TORCH_SHARDED_CHECKPOINT_SHARD_NAMES_H_
#define CADRE_TORCH_SHARDED_CHECKPOINT_SHARD_NAMES_H_

#include <cstddef>
#include <string>

namespace cadre::nn {

// Before the names of parameters and buffers.
inline constexpr char kModelPrefix[] = "model.";
inline constexpr char kBufferPrefix[] = "buffer.";
// Before the parameter's name; `tensor` in the order of TensorsOf() (optimizer_state.h).
inline std::string StatePrefix(size_t tensor) {
  return "optimizer." + std::to_string(tensor) + ".";
}

// The optimizer's archive, with tensors of no elements: one for all ranks, or, before the number of
// each, one with the states that this rank has; and what the program adds.
inline constexpr char kHeadName[] = "optimizer";
inline constexpr char kRankHeadPrefix[] = "optimizer_of_rank.";
inline constexpr char kExtraName[] = "extra";
// Of these.
inline constexpr char kTextType[] = "text";
// In the archive: for each parameter, the one whose state is there; empty: it has none.
inline constexpr char kLikeKey[] = "cadre_like";

}  // namespace cadre::nn

#endif  // CADRE_TORCH_SHARDED_CHECKPOINT_SHARD_NAMES_H_
