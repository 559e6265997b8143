#include "cadre/hooks/sparse.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker_runtime/hooks/hook_base.h"
#include "worker_runtime/hooks/selection.h"
#include "worker_runtime/reduce/element_scaling.h"

namespace cadre::hooks {
namespace {

constexpr char kName[] = "sparse";

// Rounds values to what arrives after sending them as `type`.
void RoundTo(DataType type, Span<float> values) {
  if (type == DataType::kFloat32 || values.empty()) return;
  std::vector<uint16_t> narrow(values.size());
  reduce::NarrowFromFloat(type, values.data(), values.size(), narrow.data());
  reduce::WidenToFloat(type, narrow.data(), values.size(), values.data());
}

// One rank's message: all indices, then all values; room for `capacity` of them.
std::vector<char> Pack(Span<const int32_t> indices, Span<const float> values, DataType type,
                       size_t capacity) {
  std::vector<char> message(capacity * (sizeof(int32_t) + SizeOf(type)));
  if (indices.empty()) return message;
  std::memcpy(message.data(), indices.data(), indices.size() * sizeof(int32_t));
  StoreFloats(values, {message.data() + capacity * sizeof(int32_t), values.size(), type});
  return message;
}

Status AddPacked(const char* message, size_t count, size_t capacity, DataType type, int rank,
                 std::vector<float>& sum) {
  std::vector<int32_t> indices(count);
  if (count > 0) std::memcpy(indices.data(), message, count * sizeof(int32_t));
  const std::vector<float> values =
      LoadFloats({const_cast<char*>(message) + capacity * sizeof(int32_t), count, type});
  for (size_t k = 0; k < count; ++k) {
    if (indices[k] < 0 || static_cast<size_t>(indices[k]) >= sum.size()) {
      return InvalidArgumentError(absl::StrCat("rank ", rank, " sent element ", indices[k],
                                               " of a bucket of ", sum.size()));
    }
    sum[indices[k]] += values[k];
  }
  return OkStatus();
}

}  // namespace

SparseHook::SparseHook(const SparseOptions& options)
    : options_(options), thread_(std::make_unique<HookThread>()) {}

SparseHook::~SparseHook() = default;

uint64_t SparseHook::bytes_given() const { return thread_->bytes_given(); }

Status SparseHook::Layout(Span<const BucketView> buckets) {
  const double sparsity = options_.sparsity;
  const bool top_k = options_.select == SparseOptions::Select::kTopK;
  if (!(sparsity > 0) || (top_k && sparsity > 1)) {
    return InvalidArgumentError(absl::StrCat(
        "sparse synchronization was asked to send ",
        top_k ? "this share of the elements: " : "elements from this magnitude: ", sparsity,
        top_k ? "; expected more than 0 and at most 1" : "; expected more than 0"));
  }
  RETURN_IF_ERROR(CheckFloatBuckets("sparse synchronization", buckets));
  return CheckSizes(residuals_, buckets);
}

std::string SparseHook::DescribeOptions() const {
  const bool top_k = options_.select == SparseOptions::Select::kTopK;
  return absl::StrCat(top_k ? "top " : "from ", options_.sparsity,
                      options_.residual ? "" : ", without residual");
}

std::shared_ptr<Work> SparseHook::Start(Communicator& communicator, const BucketView& bucket) {
  return thread_->Start([this, &communicator, bucket] { return Reduce(communicator, bucket); });
}

std::vector<int32_t> SparseHook::Select(Span<const float> values) const {
  if (options_.select == SparseOptions::Select::kThreshold) {
    return ElementsFrom(values, static_cast<float>(options_.sparsity));
  }
  const double count = std::ceil(options_.sparsity * static_cast<double>(values.size()));
  return LargestElements(values, static_cast<size_t>(count));
}

Status SparseHook::Reduce(Communicator& communicator, const BucketView& bucket) {
  if (bucket.buffer.count == 0) return OkStatus();
  const DataType type = bucket.buffer.type;
  std::vector<float> values = LoadFloats(bucket.buffer);
  for (const GradientView& gradient : bucket.gradients) {
    if (!options_.residual) break;
    const std::vector<float>& kept = Of(residuals_, gradient);
    for (size_t k = 0; k < kept.size(); ++k) values[gradient.offset + k] += kept[k];
  }
  const std::vector<int32_t> indices = Select(values);
  std::vector<float> sent;
  sent.reserve(indices.size());
  for (const int32_t i : indices) sent.push_back(values[i]);
  RoundTo(type, MakeSpan(sent));
  std::vector<float> selected(values.size());
  for (size_t k = 0; k < indices.size(); ++k) {
    selected[indices[k]] = sent[k];
    values[indices[k]] -= sent[k];
  }
  // NaN and infinity are not kept in the residual, since they would recur for ever.
  for (float& rest : values) rest = std::isfinite(rest) ? rest : 0.0f;
  for (const GradientView& gradient : bucket.gradients) {
    if (!options_.residual) break;
    const auto from = values.begin() + gradient.offset;
    std::copy(from, from + gradient.count, Of(residuals_, gradient).begin());
  }
  RETURN_IF_ERROR(Exchange(communicator, indices, selected, type));
  const float factor = 1.0f / static_cast<float>(communicator.size());
  for (float& value : selected) value *= factor;
  StoreFloats(selected, bucket.buffer);
  return OkStatus();
}

// The number of elements that each rank sends. With a fraction all ranks know it.
Result<std::vector<size_t>> SparseHook::Counts(Communicator& communicator, size_t mine,
                                               size_t elements) {
  if (options_.select == SparseOptions::Select::kTopK) {
    return std::vector<size_t>(communicator.size(), mine);
  }
  auto count = static_cast<int64_t>(mine);
  std::vector<int64_t> all(communicator.size());
  RETURN_IF_ERROR(thread_->AllGather(communicator, {&count, 1, DataType::kInt64},
                                     {all.data(), all.size(), DataType::kInt64}));
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (all[rank] < 0 || all[rank] > static_cast<int64_t>(elements)) {
      return InvalidArgumentError(absl::StrCat("rank ", rank, " wants to send ", all[rank],
                                               " elements of a bucket of ", elements));
    }
  }
  return std::vector<size_t>(all.begin(), all.end());
}

// `values` holds this rank's selected elements among zeros, and afterwards the sum over the ranks.
Status SparseHook::Exchange(Communicator& communicator, Span<const int32_t> indices,
                            std::vector<float>& values, DataType type) {
  if (communicator.size() == 1) return OkStatus();
  ASSIGN_OR_RETURN(const std::vector<size_t> counts,
                   Counts(communicator, indices.size(), values.size()));
  const size_t capacity = *std::max_element(counts.begin(), counts.end());
  if (capacity == 0) return OkStatus();
  if (capacity * counts.size() >= values.size()) {
    return thread_->SumFloats(communicator, values.data(), values.size(), type);
  }
  std::vector<float> sent;
  for (const int32_t i : indices) sent.push_back(values[i]);
  std::vector<char> mine = Pack(indices, sent, type, capacity);
  std::vector<char> all(mine.size() * counts.size());
  RETURN_IF_ERROR(thread_->AllGather(communicator, {mine.data(), mine.size(), DataType::kUint8},
                                     {all.data(), all.size(), DataType::kUint8}));
  std::fill(values.begin(), values.end(), 0.0f);
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    RETURN_IF_ERROR(AddPacked(all.data() + rank * mine.size(), counts[rank], capacity, type,
                              static_cast<int>(rank), values));
  }
  return OkStatus();
}

Result<std::string> SparseHook::SaveState() const {
  HookStateWriter writer(kName);
  writer.Put(residuals_);
  return writer.Take();
}

Status SparseHook::LoadState(std::string_view state) {
  HookStateReader reader(state);
  RETURN_IF_ERROR(reader.Expect(kName));
  ASSIGN_OR_RETURN(FloatsByParameter residuals, reader.Floats());
  RETURN_IF_ERROR(reader.End());
  residuals_ = std::move(residuals);
  return OkStatus();
}

}  // namespace cadre::hooks
