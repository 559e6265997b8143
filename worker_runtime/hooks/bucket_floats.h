// The gradients of a bucket as floats, whatever type the bucket has. Pure.
#ifndef CADRE_WORKER_RUNTIME_HOOKS_BUCKET_FLOATS_H_
#define CADRE_WORKER_RUNTIME_HOOKS_BUCKET_FLOATS_H_

#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"
#include "cadre/communication_hook.h"
#include "cadre/span.h"
#include "cadre/status.h"

namespace cadre::hooks {

// INVALID_ARGUMENT, naming `hook` and the bucket: other than float32, float16 and bfloat16, or more
// than 2^31 - 1 elements.
Status CheckFloatBuckets(absl::string_view hook, Span<const BucketView> buckets);

std::vector<float> LoadFloats(const Buffer& buffer);
void StoreFloats(Span<const float> values, const Buffer& buffer);

}  // namespace cadre::hooks

#endif  // CADRE_WORKER_RUNTIME_HOOKS_BUCKET_FLOATS_H_
