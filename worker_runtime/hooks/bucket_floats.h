// The gradients of a bucket as floats, whatever type the bucket has. Pure.
#ifndef CADRE_WORKER_RUNTIME_HOOKS_BUCKET_FLOATS_H_
#define CADRE_WORKER_RUNTIME_HOOKS_BUCKET_FLOATS_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker_runtime/communication_hook.h"

namespace cadre::hooks {

// INVALID_ARGUMENT, naming `hook` and the bucket: other than float32, float16 and bfloat16, or more
// than 2^31 - 1 elements.
absl::Status CheckFloatBuckets(absl::string_view hook, absl::Span<const BucketView> buckets);

std::vector<float> LoadFloats(const Buffer& buffer);
void StoreFloats(absl::Span<const float> values, const Buffer& buffer);

}  // namespace cadre::hooks

#endif  // CADRE_WORKER_RUNTIME_HOOKS_BUCKET_FLOATS_H_
