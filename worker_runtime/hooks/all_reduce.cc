#include "worker_runtime/hooks/all_reduce.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker_runtime/hooks/bucket_floats.h"
#include "worker_runtime/hooks/hook_state.h"
#include "worker_runtime/reduce/element_scaling.h"

namespace cadre::hooks {
namespace {

constexpr char kName[] = "all-reduce";

}  // namespace

std::shared_ptr<Work> AllReduceHook::Start(Communicator& communicator, const BucketView& bucket) {
  return thread_.Start([this, &communicator, buffer = bucket.buffer]() -> absl::Status {
    if (buffer.count == 0 || communicator.size() == 1) return absl::OkStatus();
    reduce::MultiplyInPlace(buffer, 1.0 / communicator.size());
    return thread_.AllReduce(communicator, buffer, ReduceOp::kSum);
  });
}

absl::StatusOr<std::string> AllReduceHook::SaveState() const {
  return HookStateWriter(kName).Take();
}

absl::Status AllReduceHook::LoadState(absl::string_view state) {
  HookStateReader reader(state);
  RETURN_IF_ERROR(reader.Expect(kName));
  return reader.End();
}

absl::Status ClippingHook::Layout(absl::Span<const BucketView> buckets) {
  if (!(limit_ > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradients cannot be clipped to ", limit_, ": the limit must be positive"));
  }
  RETURN_IF_ERROR(CheckFloatBuckets("clipping", buckets));
  return inner_->Layout(buckets);
}

std::shared_ptr<Work> ClippingHook::Start(Communicator& communicator, const BucketView& bucket) {
  const auto limit = static_cast<float>(limit_);
  std::vector<float> values = LoadFloats(bucket.buffer);
  for (float& value : values) {
    if (value > limit) value = limit;
    if (value < -limit) value = -limit;
  }
  StoreFloats(values, bucket.buffer);
  return inner_->Start(communicator, bucket);
}

}  // namespace cadre::hooks
