// Assigns gradients to buckets, allocates their memory, and agrees on the order in which they
// become ready.
#include "worker_runtime/reduce/gradient_buckets.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "cadre/wait_or_abort.h"

namespace cadre::reduce {
namespace {

// The most names in one error.
constexpr size_t kNamesInError = 10;

size_t CountHere(const Parameter& parameter) {
  return parameter.reduced_elsewhere ? 0 : parameter.value.count;
}

}  // namespace

Result<GradientBuckets> GradientBuckets::Allocate(Communicator& communicator,
                                                  Span<const Parameter> parameters,
                                                  std::vector<Bucket> assignment,
                                                  size_t tail_count) {
  GradientBuckets result;
  result.places_.resize(parameters.size());
  size_t placed = 0;
  for (size_t b = 0; b < assignment.size(); ++b) {
    Memory& bucket = result.buckets_.emplace_back();
    bucket.type = parameters[assignment[b].front()].value.type;
    for (size_t i : assignment[b]) bucket.count += CountHere(parameters[i]);
    const size_t element = SizeOf(bucket.type);
    result.bytes_ += bucket.count * element;
    const bool last = b + 1 == assignment.size();
    const size_t bytes = (bucket.count + (last ? tail_count : 0)) * element;
    if (bytes > 0) {
      ASSIGN_OR_RETURN(bucket.memory, communicator.AllocateBuffer(bytes));
    }
    char* const memory = static_cast<char*>(bucket.memory.get());
    size_t offset = 0;
    for (size_t i : assignment[b]) {
      const size_t count = CountHere(parameters[i]);
      CADRE_CHECK(
          parameters[i].value.type == bucket.type && result.places_[i].buffer.data == nullptr,
          "gradient ", i, " does not belong into bucket ", b);
      ++placed;
      result.places_[i] = {b, {memory + offset * element, count, bucket.type}};
      bucket.gradients.push_back({i, offset, count, parameters[i].shape});
      offset += count;
    }
    if (last) result.tail_ = {memory + offset * element, tail_count, bucket.type};
  }
  CADRE_CHECK(placed == parameters.size(), placed, " of ", parameters.size(), " gradients");
  result.assignment_ = std::move(assignment);
  return result;
}

BucketView GradientBuckets::View(size_t bucket) const {
  const Memory& memory = buckets_[bucket];
  return {bucket, size(), {memory.memory.get(), memory.count, memory.type}, memory.gradients};
}

Buffer GradientBuckets::WithTail(size_t bucket) const {
  const Memory& memory = buckets_[bucket];
  const size_t tail = bucket + 1 == size() ? tail_.count : 0;
  return {memory.memory.get(), memory.count + tail, memory.type};
}

void GradientBuckets::CopyFrom(const GradientBuckets& other) {
  for (size_t i = 0; i < places_.size(); ++i) {
    const Buffer& from = other.places_.at(i).buffer;
    const Buffer& to = places_[i].buffer;
    CADRE_CHECK(from.count == to.count && from.type == to.type, "gradient ", i, " has changed");
    if (to.count > 0) std::memcpy(to.data, from.data, to.count * SizeOf(to.type));
  }
}

std::string GradientBuckets::Describe(size_t bucket, Span<const Parameter> parameters) const {
  std::vector<std::string> names;
  for (size_t i : assignment_[bucket]) names.push_back(absl::CHexEscape(parameters[i].name));
  return absl::StrCat("bucket ", bucket, " of ", size(), " (", JoinNames(std::move(names)), ")");
}

std::string JoinNames(std::vector<std::string> names) {
  const size_t count = names.size();
  if (count > kNamesInError) {
    names.resize(kNamesInError);
    names.push_back(absl::StrCat("and ", count - kNamesInError, " more"));
  }
  return absl::StrJoin(names, ", ");
}

namespace {

struct OpenBucket {
  Bucket members;
  size_t bytes = 0;
  // The index of this bucket's limit.
  size_t limit = 0;
  // The position of the first member in the order.
  size_t opened = 0;
};

}  // namespace

std::vector<Bucket> AssignBuckets(Span<const GradientShape> gradients, Span<const size_t> limits,
                                  Span<const size_t> order) {
  std::vector<Bucket> buckets;
  std::map<std::pair<DataType, int>, OpenBucket> open;
  for (size_t position = 0; position < order.size(); ++position) {
    CADRE_CHECK(order[position] < gradients.size(), "the order names gradient ", order[position],
                " of ", gradients.size());
    const GradientShape& gradient = gradients[order[position]];
    OpenBucket& bucket = open[{gradient.type, gradient.kind}];
    if (bucket.members.empty()) bucket.opened = position;
    bucket.members.push_back(order[position]);
    bucket.bytes += gradient.bytes;
    if (limits.empty() || bucket.bytes < limits[bucket.limit]) continue;
    buckets.push_back(std::move(bucket.members));
    bucket.members.clear();
    bucket.bytes = 0;
    bucket.limit = std::min(bucket.limit + 1, limits.size() - 1);
  }
  std::vector<OpenBucket> rest;
  for (auto& [key, bucket] : open) {
    if (!bucket.members.empty()) rest.push_back(std::move(bucket));
  }
  std::sort(rest.begin(), rest.end(),
            [](const OpenBucket& a, const OpenBucket& b) { return a.opened < b.opened; });
  for (OpenBucket& bucket : rest) buckets.push_back(std::move(bucket.members));
  return buckets;
}

std::vector<size_t> ReverseOrder(size_t count) {
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = count - 1 - i;
  return order;
}

void GradientReadiness::BeginStep() {
  times_ready_.assign(times_ready_.size(), 0);
  any_ = false;
  order_.clear();
  in_order_.assign(in_order_.size(), false);
}

void GradientReadiness::Note(size_t i) {
  if (in_order_[i]) return;
  in_order_[i] = true;
  order_.push_back(i);
}

bool GradientReadiness::Mark(size_t i) {
  any_ = true;
  Note(i);
  ++times_ready_[i];
  return IsComplete(i);
}

std::vector<size_t> GradientReadiness::Missing() const {
  std::vector<size_t> missing;
  for (size_t i = 0; i < times_ready_.size() && !counts_only_; ++i) {
    if (times_ready_[i] < expected_[i]) missing.push_back(i);
  }
  return missing;
}

void GradientReadiness::LearnGraph() {
  if (!counts_only_) return;
  expected_ = times_ready_;
  counts_only_ = false;
}

Result<std::vector<size_t>> AgreeOnReadyOrder(Communicator& communicator, Span<const size_t> ready,
                                              size_t count, std::chrono::nanoseconds timeout) {
  std::vector<int32_t> order(ready.begin(), ready.end());
  std::vector<bool> seen(count);
  for (const size_t i : ready) seen[i] = true;
  for (const size_t i : ReverseOrder(count)) {
    if (!seen[i]) order.push_back(static_cast<int32_t>(i));
  }
  CADRE_CHECK(order.size() == count, "an order of ", order.size(), " of ", count, " gradients");
  if (communicator.size() > 1) {
    const Status sent = WaitOrAbort(
        communicator, communicator.Broadcast({order.data(), order.size(), DataType::kInt32}, 0),
        timeout);
    if (!sent.ok()) {
      return Status(
          sent.code(),
          absl::StrCat("broadcast of the order in which gradients become ready: ", sent.message()));
    }
  }
  return std::vector<size_t>(order.begin(), order.end());
}

}  // namespace cadre::reduce
