#include "worker_runtime/reduce/step_verdict.h"

#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker_runtime/reduce/gradient_buckets.h"
#include "worker_runtime/reduce/gradient_scan.h"

namespace cadre::reduce {

std::string DescribeNonFinite(const StepSummaries& summaries, Span<const Parameter> parameters,
                              int64_t step) {
  std::vector<std::string> found;
  // What lies on a device may be looked at when the next step has begun.
  bool late = false;
  for (size_t rank = 0; rank < summaries.ranks.size(); ++rank) {
    const std::optional<size_t> parameter = summaries.ranks[rank].not_finite;
    if (!parameter || *parameter >= parameters.size()) continue;
    late = late || parameters[*parameter].reduced_elsewhere;
    found.push_back(
        absl::StrCat("rank ", rank, " of '", absl::CHexEscape(parameters[*parameter].name), "'"));
  }
  if (found.empty()) return "";
  return absl::StrCat("a gradient is not finite in step ", step,
                      late ? " or the one before it" : "", ": on ", JoinNames(std::move(found)));
}

std::string DescribeNonFiniteFromHook(const GradientBuckets& buckets, const std::vector<bool>& used,
                                      Span<const Parameter> parameters, int64_t step) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!used[i] || IsFinite(buckets.Gradient(i))) continue;
    return absl::StrCat(
        "the gradient of '", absl::CHexEscape(parameters[i].name), "' is not finite in step ", step,
        " after the communication hook, although the gradients of all ranks were finite before it; "
        "where the hook sends float16, nothing above 65504 fits: scale the loss down, clip before "
        "the hook (ClippingHook) or send bfloat16 (Bf16Hook)");
  }
  return "";
}

Status CheckDrift(Communicator& communicator, Span<const Parameter> parameters,
                  const std::vector<int>& drifted, int64_t step, std::chrono::nanoseconds timeout) {
  if (drifted.empty()) return OkStatus();
  // All ranks come here. Values are compared one by one, to name the parameter.
  const Status named = CheckEqualValues(communicator, parameters, timeout).status();
  return DataLossError(absl::StrCat(
      "the parameters were different before step ", step, " on rank ", absl::StrJoin(drifted, ", "),
      " than on rank 0", named.ok() ? "" : absl::StrCat(": ", named.message()),
      "; something changed them without the other ranks, or a step went around the reducer"));
}

}  // namespace cadre::reduce
