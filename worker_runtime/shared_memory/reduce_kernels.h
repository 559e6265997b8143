// Element-wise reduction of several ranks' memory. Pure loops, vectorised, in the widest form that
// the processor has.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_REDUCE_KERNELS_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_REDUCE_KERNELS_H_

#include <cstddef>

#include "cadre/communicator.h"

namespace cadre::shared_memory {

// For `count` elements of each of `ranks` inputs:
//   outputs[o][i] = inputs[0][i] * factors[0] op inputs[1][i] * factors[1] op ...
// An output may be an input, not lie across one. The order of the ranks is the same for every
// element, so the result does not depend on which rank computes which part. float16 and bfloat16
// are reduced in float32 and rounded once.
struct ElementReduction {
  DataType type = DataType::kFloat32;
  // kAverage divides by `ranks`.
  ReduceOp op = ReduceOp::kSum;
  const char* const* inputs = nullptr;
  // Null: all 1, as they must be for integers.
  const double* factors = nullptr;
  int ranks = 0;
  char* const* outputs = nullptr;
  int output_count = 0;
  size_t count = 0;
};

void ReduceElements(const ElementReduction& reduction);

// The two forms, for tests: every processor has the first.
void ReduceElementsPortably(const ElementReduction& reduction);
bool HasWideReduction();
void ReduceElementsWide(const ElementReduction& reduction);

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_REDUCE_KERNELS_H_
