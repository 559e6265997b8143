#include "worker_runtime/hooks/bucket_floats.h"

#include <cstdint>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/reduce/element_scaling.h"

namespace cadre::hooks {
namespace {

constexpr size_t kMaxElements = std::numeric_limits<int32_t>::max();

}  // namespace

Status CheckFloatBuckets(absl::string_view hook, Span<const BucketView> buckets) {
  for (const BucketView& bucket : buckets) {
    const DataType type = bucket.buffer.type;
    if (type != DataType::kFloat32 && type != DataType::kFloat16 && type != DataType::kBfloat16) {
      return InvalidArgumentError(absl::StrCat(
          "the gradients of bucket ", bucket.index, " are ", backend::Name(type), "; ", hook,
          " works on float32: convert the model, or synchronize without this hook"));
    }
    if (bucket.buffer.count > kMaxElements) {
      return InvalidArgumentError(
          absl::StrCat("bucket ", bucket.index, " has ", bucket.buffer.count, " elements; ", hook,
                       " takes at most ", kMaxElements, ": lower bucket_bytes"));
    }
  }
  return OkStatus();
}

std::vector<float> LoadFloats(const Buffer& buffer) {
  std::vector<float> values(buffer.count);
  if (buffer.count == 0) return values;
  if (buffer.type == DataType::kFloat32) {
    std::memcpy(values.data(), buffer.data, buffer.count * sizeof(float));
  } else {
    reduce::WidenToFloat(buffer.type, buffer.data, buffer.count, values.data());
  }
  return values;
}

void StoreFloats(Span<const float> values, const Buffer& buffer) {
  if (values.empty()) return;
  if (buffer.type == DataType::kFloat32) {
    std::memcpy(buffer.data, values.data(), values.size() * sizeof(float));
  } else {
    reduce::NarrowFromFloat(buffer.type, values.data(), values.size(), buffer.data);
  }
}

}  // namespace cadre::hooks
