// The order of a pass's units, which all ranks must share: what FullySharded is made of.
#ifndef CADRE_TORCH_FULLY_SHARDED_UNIT_ORDER_H_
#define CADRE_TORCH_FULLY_SHARDED_UNIT_ORDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cadre/status.h"
#include "cadre/torch/fully_sharded/flat_parameter.h"

namespace cadre::nn {

// Gathers of units of one size look alike to a communicator, which would mix up their parameters.
// So orders are compared when one differs from the pass's before, as in the first pass. A rank that
// alone takes another order than before then makes a call that the others do not make.
class UnitOrder {
 public:
  void Begin() { pass_.clear(); }
  // `index` is the unit's, the same on all ranks.
  void Add(int32_t index) { pass_.push_back(index); }
  // Collective, at the end of a forward pass. INVALID_ARGUMENT, naming the rank: a rank's was
  // another.
  Status Check(const ShardRoute& route);

 private:
  std::vector<int32_t> pass_;
  std::vector<int32_t> before_;
};

}  // namespace cadre::nn

#endif  // CADRE_TORCH_FULLY_SHARDED_UNIT_ORDER_H_
