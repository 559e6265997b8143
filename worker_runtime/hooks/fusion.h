// Small tensors that travel together, by SINGA's rule. Pure.
#ifndef CADRE_WORKER_RUNTIME_HOOKS_FUSION_H_
#define CADRE_WORKER_RUNTIME_HOOKS_FUSION_H_

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "worker_runtime/reduce/bucket.h"

namespace cadre::hooks {

// SINGA's default threshold, in elements.
inline constexpr size_t kFusionThreshold = 2097152;

// Goes through the tensors, of these many elements, in `order`. One with more than `threshold`
// elements is a group of its own; the others are collected, and a group is closed as soon as it has
// more than that. Groups come in the order in which they are closed, the rest last.
std::vector<reduce::Bucket> FusionGroups(absl::Span<const size_t> counts,
                                         absl::Span<const size_t> order, size_t threshold);

}  // namespace cadre::hooks

#endif  // CADRE_WORKER_RUNTIME_HOOKS_FUSION_H_
