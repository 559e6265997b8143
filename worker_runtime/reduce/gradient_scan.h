// Looks for NaN and infinity while gradients are in the cache anyway. Pure.
#ifndef CADRE_WORKER_RUNTIME_REDUCE_GRADIENT_SCAN_H_
#define CADRE_WORKER_RUNTIME_REDUCE_GRADIENT_SCAN_H_

#include <cstddef>

#include "cadre/communicator.h"

namespace cadre::reduce {

// kFloat32 and kFloat64; other types count as finite.
bool IsFinite(const Buffer& buffer);

// Copies `source` into `target`, and tells whether all of it is finite. They do not overlap, unless
// they are the same memory, which is looked at where it is.
bool CopyAndCheckFinite(const Buffer& target, const void* source);

}  // namespace cadre::reduce

#endif  // CADRE_WORKER_RUNTIME_REDUCE_GRADIENT_SCAN_H_
