// Which elements of a gradient are worth sending. Pure.
#ifndef CADRE_WORKER_RUNTIME_HOOKS_SELECTION_H_
#define CADRE_WORKER_RUNTIME_HOOKS_SELECTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cadre/span.h"

namespace cadre::hooks {

// Both give indices in ascending order. NaN counts as larger than everything, so that it is sent
// and seen rather than kept.

// The `count` elements of the largest magnitude; of equal ones those that come first. All, when
// there are not more.
std::vector<int32_t> LargestElements(Span<const float> values, size_t count);

// All elements of at least that magnitude.
std::vector<int32_t> ElementsFrom(Span<const float> values, float magnitude);

}  // namespace cadre::hooks

#endif  // CADRE_WORKER_RUNTIME_HOOKS_SELECTION_H_
