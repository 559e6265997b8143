// The reductions of a FullySharded model's gradients from their start to the shards' gradients:
// what FullySharded is made of.
#ifndef CADRE_TORCH_FULLY_SHARDED_REDUCTIONS_UNDER_WAY_H_
#define CADRE_TORCH_FULLY_SHARDED_REDUCTIONS_UNDER_WAY_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "cadre/status.h"
#include "cadre/torch/fully_sharded/flat_parameter.h"

namespace cadre::nn {

// One thread. Errors are the flat parameters'; after one nothing may follow.
class ReductionsUnderWay {
 public:
  // It must outlive this, and so must the flat parameters.
  explicit ReductionsUnderWay(const ShardRoute& route) : route_(route) {}

  // Starts those of trained ones, and brings older ones on. What would make the computation or the
  // host wait, on a device, is left to Finish().
  Status Start(const std::vector<std::unique_ptr<FlatParameter>>& flats);
  // The shards have their gradients.
  Status Finish() { return BringOn(0, 0); }
  bool empty() const { return reducing_.empty() && across_.empty(); }

 private:
  // Hands all but the last so many on to the replicas, and ends all but the last so many of those.
  Status BringOn(size_t reducing, size_t across);

  const ShardRoute& route_;
  // The oldest first; those that the replicas have after them.
  std::deque<FlatParameter*> reducing_;
  std::deque<FlatParameter*> across_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_FULLY_SHARDED_REDUCTIONS_UNDER_WAY_H_
