#include "cadre/hooks/all_reduce.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker_runtime/hooks/bucket_floats.h"
#include "worker_runtime/hooks/hook_state.h"
#include "worker_runtime/hooks/hook_thread.h"
#include "worker_runtime/reduce/element_scaling.h"

namespace cadre::hooks {
namespace {

constexpr char kName[] = "all-reduce";

}  // namespace

AllReduceHook::AllReduceHook() : thread_(std::make_unique<HookThread>()) {}

AllReduceHook::~AllReduceHook() = default;

uint64_t AllReduceHook::bytes_given() const { return thread_->bytes_given(); }

std::shared_ptr<Work> AllReduceHook::Start(Communicator& communicator, const BucketView& bucket) {
  return thread_->Start([this, &communicator, buffer = bucket.buffer]() -> Status {
    if (buffer.count == 0 || communicator.size() == 1) return OkStatus();
    reduce::MultiplyInPlace(buffer, 1.0 / communicator.size());
    return thread_->AllReduce(communicator, buffer, ReduceOp::kSum);
  });
}

Result<std::string> AllReduceHook::SaveState() const { return HookStateWriter(kName).Take(); }

Status AllReduceHook::LoadState(std::string_view state) {
  HookStateReader reader(state);
  RETURN_IF_ERROR(reader.Expect(kName));
  return reader.End();
}

ClippingHook::ClippingHook(double limit, std::shared_ptr<CommunicationHook> inner)
    : limit_(limit),
      inner_(inner == nullptr ? std::make_shared<AllReduceHook>() : std::move(inner)) {}

Status ClippingHook::Layout(Span<const BucketView> buckets) {
  if (!(limit_ > 0)) {
    return InvalidArgumentError(
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

std::optional<PlainAverage> ClippingHook::plain_average() const {
  std::optional<PlainAverage> average = inner_->plain_average();
  if (average) average->limit = std::min(limit_, average->limit.value_or(limit_));
  return average;
}

std::string ClippingHook::DescribeOptions() const {
  return absl::StrCat("at most ", limit_, ", then ", inner_->DescribeOptions());
}

}  // namespace cadre::hooks
