// The hooks that all-reduce each bucket: unchanged, clipped, or in 16 bits.
#include "cadre/hooks/all_reduce.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "cadre/hooks/sixteen_bit.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/hooks/hook_base.h"
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

SixteenBitHook::SixteenBitHook(DataType type, std::shared_ptr<CommunicationHook> inner)
    : type_(type),
      inner_(inner == nullptr ? std::make_shared<AllReduceHook>() : std::move(inner)),
      thread_(std::make_unique<HookThread>()) {}

SixteenBitHook::~SixteenBitHook() = default;

Status SixteenBitHook::Layout(Span<const BucketView> buckets) {
  std::vector<BucketView> narrow(buckets.begin(), buckets.end());
  copies_.assign(buckets.size(), {});
  for (size_t b = 0; b < buckets.size(); ++b) {
    if (buckets[b].buffer.type != DataType::kFloat32) {
      return InvalidArgumentError(absl::StrCat("the gradients of bucket ", buckets[b].index,
                                               " are ", backend::Name(buckets[b].buffer.type),
                                               "; only float32 can travel as ",
                                               backend::Name(type_)));
    }
    copies_[b].resize(buckets[b].buffer.count);
    narrow[b].buffer = {copies_[b].data(), copies_[b].size(), type_};
  }
  return inner_->Layout(narrow);
}

std::shared_ptr<Work> SixteenBitHook::Start(Communicator& communicator, const BucketView& bucket) {
  return thread_->Start([this, &communicator, bucket] { return Reduce(communicator, bucket); });
}

Status SixteenBitHook::Reduce(Communicator& communicator, const BucketView& bucket) {
  auto* const wide = static_cast<float*>(bucket.buffer.data);
  BucketView narrow = bucket;
  CADRE_CHECK(bucket.index < copies_.size() && copies_[bucket.index].size() == bucket.buffer.count,
              "bucket ", bucket.index, " is not laid out for ", bucket.buffer.count, " elements");
  narrow.buffer = {copies_[bucket.index].data(), bucket.buffer.count, type_};
  reduce::NarrowFromFloat(type_, wide, bucket.buffer.count, narrow.buffer.data);
  RETURN_IF_ERROR(thread_->Wait(communicator, inner_->Start(communicator, narrow)));
  reduce::WidenToFloat(type_, narrow.buffer.data, bucket.buffer.count, wide);
  return OkStatus();
}

std::optional<PlainAverage> SixteenBitHook::plain_average() const {
  std::optional<PlainAverage> average = inner_->plain_average();
  // A device clamps and narrows once, in this order; an inner hook would do so to data that already
  // has 16 bits.
  if (!average || average->limit || average->travels_as) return std::nullopt;
  average->travels_as = type_;
  return average;
}

std::string SixteenBitHook::DescribeOptions() const {
  return absl::StrCat(backend::Name(type_), ", then ", inner_->DescribeOptions());
}

std::shared_ptr<CommunicationHook> Fp16Hook(std::shared_ptr<CommunicationHook> inner) {
  return std::make_shared<SixteenBitHook>(DataType::kFloat16, std::move(inner));
}

std::shared_ptr<CommunicationHook> Bf16Hook(std::shared_ptr<CommunicationHook> inner) {
  return std::make_shared<SixteenBitHook>(DataType::kBfloat16, std::move(inner));
}

}  // namespace cadre::hooks
