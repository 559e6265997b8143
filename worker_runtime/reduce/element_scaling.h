// Converts 16-bit floating point formats and multiplies whole buffers. Pure.
#ifndef CADRE_WORKER_RUNTIME_REDUCE_ELEMENT_SCALING_H_
#define CADRE_WORKER_RUNTIME_REDUCE_ELEMENT_SCALING_H_

#include <cstddef>
#include <cstdint>

#include "cadre/communicator.h"

namespace cadre::reduce {

// `type` is kFloat16 or kBfloat16. Widening is exact; narrowing rounds to the nearest, ties to
// even, and keeps NaN and infinity.
void WidenToFloat(DataType type, const void* from, size_t count, float* to);
void NarrowFromFloat(DataType type, const float* from, size_t count, void* to);

// For floating point elements; for others `factor` must be 1. 16-bit elements are multiplied in
// float32.
void MultiplyInPlace(const Buffer& buffer, double factor);

}  // namespace cadre::reduce

#endif  // CADRE_WORKER_RUNTIME_REDUCE_ELEMENT_SCALING_H_
