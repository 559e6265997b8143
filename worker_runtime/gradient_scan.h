// Looks for NaN and infinity while gradients are in the cache anyway. Pure.
#ifndef CADRE_WORKER_RUNTIME_GRADIENT_SCAN_H_
#define CADRE_WORKER_RUNTIME_GRADIENT_SCAN_H_

#include <cstddef>

#include "absl/types/span.h"
#include "worker_runtime/communicator.h"

namespace cadre {

// kFloat32 and kFloat64; other types count as finite.
bool IsFinite(const Buffer& buffer);

// Copies `source` into `target`, which do not overlap, and tells whether all of it is finite.
bool CopyAndCheckFinite(const Buffer& target, const void* source);

// Copies `count` elements into each target, none of which overlaps, past the cache: for what is not
// read again soon. Tells whether all of it is finite.
bool SpreadAndCheckFinite(absl::Span<float* const> targets, const float* source, size_t count);

}  // namespace cadre

#endif  // CADRE_WORKER_RUNTIME_GRADIENT_SCAN_H_
