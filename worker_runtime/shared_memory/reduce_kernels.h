// Reduces several ranks' memory element by element, with the widest instructions that the processor
// supports. Pure. The summing loops are in reduce_loops.inc, which reduce_kernels.cc compiles for
// any processor and reduce_kernels_wide.cc for AVX2.
#ifndef CADRE_WORKER_RUNTIME_SHARED_MEMORY_REDUCE_KERNELS_H_
#define CADRE_WORKER_RUNTIME_SHARED_MEMORY_REDUCE_KERNELS_H_

#include <cstddef>

#include "cadre/communicator.h"

namespace cadre::shared_memory {

// For `count` elements of each of `ranks` inputs:
//   outputs[o][i] = inputs[0][i] * factors[0] op inputs[1][i] * factors[1] op ...
// An output may be identical to an input but must not overlap one otherwise. The order of the ranks
// is the same for every element, so the result does not depend on which rank computes which part.
// float16 and bfloat16 are reduced in float32 and rounded once.
struct ElementReduction {
  DataType type = DataType::kFloat32;
  // kAverage divides the sum by `ranks`.
  ReduceOp op = ReduceOp::kSum;
  const char* const* inputs = nullptr;
  // Null if all factors are 1, which is required for integers.
  const double* factors = nullptr;
  int ranks = 0;
  char* const* outputs = nullptr;
  int output_count = 0;
  size_t count = 0;
};

void ReduceElements(const ElementReduction& reduction);

// The two forms, for tests. Every processor supports the portable one.
void ReduceElementsPortably(const ElementReduction& reduction);
bool HasWideReduction();
void ReduceElementsWide(const ElementReduction& reduction);

}  // namespace cadre::shared_memory

#endif  // CADRE_WORKER_RUNTIME_SHARED_MEMORY_REDUCE_KERNELS_H_
