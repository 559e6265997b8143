#include "worker_runtime/cuda/kernel_check.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker_runtime/backend/collective_check.h"

namespace cadre::cuda {

Status CheckKernelBuffer(const Buffer& buffer) {
  RETURN_IF_ERROR(backend::CheckBuffer(buffer));
  if (IsFloatingPoint(buffer.type) && buffer.type != DataType::kFloat64) return OkStatus();
  return InvalidArgumentError(
      absl::StrCat("kernels know float32, float16 and bfloat16, not ", backend::Name(buffer.type)));
}

Status CheckConvert(const Buffer& from, const Buffer& to) {
  RETURN_IF_ERROR(CheckKernelBuffer(from));
  RETURN_IF_ERROR(CheckKernelBuffer(to));
  if (from.count != to.count) {
    return InvalidArgumentError(
        absl::StrCat("converting ", from.count, " elements into ", to.count));
  }
  if (from.data == to.data && from.count > 0 && SizeOf(from.type) != SizeOf(to.type)) {
    return InvalidArgumentError(absl::StrCat("converting ", backend::Name(from.type), " to ",
                                             backend::Name(to.type), " in place"));
  }
  return OkStatus();
}

Status CheckParts(Span<const BucketPart> parts, const Buffer& bucket) {
  RETURN_IF_ERROR(CheckKernelBuffer(bucket));
  for (const BucketPart& part : parts) {
    RETURN_IF_ERROR(CheckKernelBuffer(part.tensor));
    if (part.tensor.type != parts.front().tensor.type) {
      return InvalidArgumentError(absl::StrCat("a bucket's parts are ",
                                               backend::Name(parts.front().tensor.type), " and ",
                                               backend::Name(part.tensor.type)));
    }
    if (part.tensor.count > bucket.count || part.offset > bucket.count - part.tensor.count) {
      return InvalidArgumentError(absl::StrCat("a part of ", part.tensor.count, " elements at ",
                                               part.offset, " does not fit into a bucket of ",
                                               bucket.count));
    }
  }
  return OkStatus();
}

Status CheckSelection(const Buffer& data, const Selection& selection, const void* scratch) {
  RETURN_IF_ERROR(backend::CheckBuffer(data));
  if (data.type != DataType::kFloat32) {
    return InvalidArgumentError(
        absl::StrCat("elements are selected among float32, not ", backend::Name(data.type)));
  }
  if (data.count > kMaxSelectable) {
    return InvalidArgumentError(
        absl::StrCat("elements are selected among ", kMaxSelectable, " at most, not ", data.count));
  }
  const bool has_room =
      selection.capacity == 0 || (selection.indices != nullptr && selection.values != nullptr);
  if (has_room && selection.found != nullptr && scratch != nullptr) return OkStatus();
  return InvalidArgumentError("a selection has no memory to go to");
}

Status CheckTopK(const Buffer& data, size_t k, const Selection& selection) {
  if (k <= data.count && k <= selection.capacity) return OkStatus();
  return InvalidArgumentError(absl::StrCat("selecting ", k, " of ", data.count,
                                           " elements with room for ", selection.capacity));
}

Status CheckThreshold(float threshold) {
  if (threshold >= 0) return OkStatus();
  return InvalidArgumentError(absl::StrCat("a threshold of ", threshold, " is no magnitude"));
}

}  // namespace cadre::cuda
