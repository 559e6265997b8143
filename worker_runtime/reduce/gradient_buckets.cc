#include "worker_runtime/reduce/gradient_buckets.h"

#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace cadre::reduce {
namespace {

// How many names one error carries.
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

}  // namespace cadre::reduce
