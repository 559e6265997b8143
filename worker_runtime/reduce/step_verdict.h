// Words for what the ranks' summaries of a step amount to.
#ifndef CADRE_WORKER_RUNTIME_REDUCE_STEP_VERDICT_H_
#define CADRE_WORKER_RUNTIME_REDUCE_STEP_VERDICT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker_runtime/communicator.h"
#include "worker_runtime/parameter.h"
#include "worker_runtime/reduce/step_tail.h"

namespace cadre::reduce {

// Whose gradients are not finite, and of what; empty where all are. Pure.
std::string DescribeNonFinite(const StepSummaries& summaries,
                              absl::Span<const Parameter> parameters, int64_t step);

// Collective where any rank drifted: DATA_LOSS, naming the first parameter that differs.
absl::Status CheckDrift(Communicator& communicator, absl::Span<const Parameter> parameters,
                        const std::vector<int>& drifted, int64_t step, absl::Duration timeout);

}  // namespace cadre::reduce

#endif  // CADRE_WORKER_RUNTIME_REDUCE_STEP_VERDICT_H_
