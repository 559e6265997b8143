// Selects the elements of a gradient that are sent. Pure.
#ifndef CADRE_WORKER_RUNTIME_HOOKS_SELECTION_H_
#define CADRE_WORKER_RUNTIME_HOOKS_SELECTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cadre/span.h"

namespace cadre::hooks {

// Both return indices in ascending order. NaN counts as larger than everything, so that it is sent
// and noticed instead of kept in the residual.

// The `count` elements of the largest magnitude, the first ones among equals; all, if there are not
// more.
std::vector<int32_t> LargestElements(Span<const float> values, size_t count);

// All elements of at least that magnitude.
std::vector<int32_t> ElementsFrom(Span<const float> values, float magnitude);

}  // namespace cadre::hooks

#endif  // CADRE_WORKER_RUNTIME_HOOKS_SELECTION_H_
