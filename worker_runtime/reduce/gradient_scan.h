// Checks for NaN and infinity while gradients are in the cache. Pure.
#ifndef CADRE_WORKER_RUNTIME_REDUCE_GRADIENT_SCAN_H_
#define CADRE_WORKER_RUNTIME_REDUCE_GRADIENT_SCAN_H_

#include <cstddef>

#include "cadre/communicator.h"

namespace cadre::reduce {

// Checks kFloat32 and kFloat64; other types count as finite.
bool IsFinite(const Buffer& buffer);

// Copies `source` to `target`, and returns whether all of it is finite. They must not overlap,
// unless they are the same memory, which is then checked in place.
bool CopyAndCheckFinite(const Buffer& target, const void* source);

}  // namespace cadre::reduce

#endif  // CADRE_WORKER_RUNTIME_REDUCE_GRADIENT_SCAN_H_
