// Groups small tensors that are sent together, by SINGA's rule. Pure.
#ifndef CADRE_HOOKS_FUSION_H_
#define CADRE_HOOKS_FUSION_H_

#include <cstddef>
#include <vector>

#include "cadre/span.h"

namespace cadre::hooks {

// SINGA's default threshold, in elements.
inline constexpr size_t kFusionThreshold = 2097152;

// Groups tensors of these element counts, visited in `order`. A tensor with more than `threshold`
// elements is a group of its own; the others are collected, and a group is closed as soon as it has
// more elements than that. Groups are returned in the order in which they are closed, the
// unfinished one last.
std::vector<std::vector<size_t>> FusionGroups(Span<const size_t> counts, Span<const size_t> order,
                                              size_t threshold);

}  // namespace cadre::hooks

#endif  // CADRE_HOOKS_FUSION_H_
