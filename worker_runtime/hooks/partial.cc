// PartialHook, which averages groups of parameters in turn, and FusionGroups().
#include "cadre/hooks/partial.h"

#include <chrono>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cadre/hooks/fusion.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/backend/collective_check.h"
#include "worker_runtime/hooks/hook_base.h"
#include "worker_runtime/reduce/element_scaling.h"
#include "worker_runtime/reduce/gradient_buckets.h"

namespace cadre::hooks {
namespace {

constexpr char kName[] = "partial";

size_t Bytes(const Buffer& buffer) { return buffer.count * SizeOf(buffer.type); }

// Tensors of different types cannot be summed in one message.
std::vector<reduce::Bucket> SplitByType(const reduce::Bucket& group,
                                        Span<const Parameter> parameters) {
  std::map<DataType, reduce::Bucket> parts;
  for (const size_t i : group) parts[parameters[i].value.type].push_back(i);
  std::vector<reduce::Bucket> result;
  for (auto& [type, part] : parts) result.push_back(std::move(part));
  return result;
}

}  // namespace

Result<std::shared_ptr<PartialHook>> PartialHook::Create(std::vector<Parameter> parameters,
                                                         size_t threshold) {
  if (parameters.empty()) {
    return InvalidArgumentError("there are no parameters that could be averaged in turn");
  }
  std::vector<size_t> counts;
  for (const Parameter& parameter : parameters) {
    if (!IsFloatingPoint(parameter.value.type)) {
      return InvalidArgumentError(absl::StrCat("parameter '", absl::CHexEscape(parameter.name),
                                               "' is ", backend::Name(parameter.value.type),
                                               "; only floating point parameters can be averaged"));
    }
    counts.push_back(parameter.value.count);
  }
  std::vector<reduce::Bucket> groups;
  for (const reduce::Bucket& group :
       FusionGroups(counts, reduce::ReverseOrder(counts.size()), threshold)) {
    for (reduce::Bucket& part : SplitByType(group, parameters)) groups.push_back(std::move(part));
  }
  return std::shared_ptr<PartialHook>(new PartialHook(std::move(parameters), std::move(groups)));
}

Status PartialHook::AverageNextGroup(Communicator& communicator, std::chrono::nanoseconds timeout) {
  RETURN_IF_ERROR(Average(communicator, groups_[next_], timeout));
  next_ = (next_ + 1) % groups_.size();
  return OkStatus();
}

Status PartialHook::AverageAll(Communicator& communicator, std::chrono::nanoseconds timeout) {
  for (const reduce::Bucket& group : groups_)
    RETURN_IF_ERROR(Average(communicator, group, timeout));
  return OkStatus();
}

Status PartialHook::Average(Communicator& communicator, const reduce::Bucket& group,
                            std::chrono::nanoseconds timeout) {
  if (communicator.size() == 1) return OkStatus();
  const DataType type = parameters_[group.front()].value.type;
  size_t bytes = 0;
  for (const size_t i : group) bytes += Bytes(parameters_[i].value);
  if (bytes == 0) return OkStatus();
  std::vector<char> fused(bytes);
  char* at = fused.data();
  for (const size_t i : group) {
    const Buffer& value = parameters_[i].value;
    if (value.count > 0) std::memcpy(at, value.data, Bytes(value));
    at += Bytes(value);
  }
  const Buffer all{fused.data(), bytes / SizeOf(type), type};
  reduce::MultiplyInPlace(all, 1.0 / communicator.size());
  bytes_given_ += bytes;
  RETURN_IF_ERROR(WaitOrAbort(communicator, communicator.AllReduce(all, ReduceOp::kSum), timeout));
  at = fused.data();
  for (const size_t i : group) {
    const Buffer& value = parameters_[i].value;
    if (value.count > 0) std::memcpy(value.data, at, Bytes(value));
    at += Bytes(value);
  }
  return OkStatus();
}

std::shared_ptr<Work> PartialHook::Start(Communicator&, const BucketView&) {
  return FinishedWork(OkStatus());
}

Result<std::string> PartialHook::SaveState() const {
  HookStateWriter writer(kName);
  writer.Put(groups_.size());
  writer.Put(next_);
  return writer.Take();
}

Status PartialHook::LoadState(std::string_view state) {
  HookStateReader reader(state);
  RETURN_IF_ERROR(reader.Expect(kName));
  ASSIGN_OR_RETURN(const uint64_t groups, reader.Number());
  ASSIGN_OR_RETURN(const uint64_t next, reader.Number());
  RETURN_IF_ERROR(reader.End());
  if (groups != groups_.size() || next >= groups) {
    return InvalidArgumentError(absl::StrCat("the state of the partial hook has ", groups,
                                             " groups, but this hook has ", groups_.size(),
                                             ": it was saved for another model or threshold"));
  }
  next_ = next;
  return OkStatus();
}

std::vector<std::vector<size_t>> FusionGroups(Span<const size_t> counts, Span<const size_t> order,
                                              size_t threshold) {
  std::vector<std::vector<size_t>> groups;
  std::vector<size_t> open;
  size_t elements = 0;
  for (const size_t i : order) {
    if (counts[i] > threshold) {
      groups.push_back({i});
      continue;
    }
    open.push_back(i);
    elements += counts[i];
    if (elements <= threshold) continue;
    groups.push_back(std::exchange(open, {}));
    elements = 0;
  }
  if (!open.empty()) groups.push_back(std::move(open));
  return groups;
}

}  // namespace cadre::hooks
