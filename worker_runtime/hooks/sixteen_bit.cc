#include "cadre/hooks/sixteen_bit.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "cadre/hooks/all_reduce.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/hooks/hook_thread.h"
#include "worker_runtime/reduce/element_scaling.h"

namespace cadre::hooks {

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
  // A device cuts and narrows once, in this order; an inner hook does it to what is 16 bits
  // already.
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
