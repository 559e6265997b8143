// Small tensors that travel together, by SINGA's rule. Pure.
#ifndef CADRE_HOOKS_FUSION_H_
#define CADRE_HOOKS_FUSION_H_

#include <cstddef>
#include <vector>

#include "cadre/span.h"

namespace cadre::hooks {

// SINGA's default threshold, in elements.
inline constexpr size_t kFusionThreshold = 2097152;

// Goes through the tensors, of these many elements, in `order`. One with more than `threshold`
// elements is a group of its own; the others are collected, and a group is closed as soon as it has
// more than that. Groups come in the order in which they are closed, the rest last.
std::vector<std::vector<size_t>> FusionGroups(Span<const size_t> counts, Span<const size_t> order,
                                              size_t threshold);

}  // namespace cadre::hooks

#endif  // CADRE_HOOKS_FUSION_H_
