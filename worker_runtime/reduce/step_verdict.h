// Words for what the ranks' summaries of a step amount to.
#ifndef CADRE_WORKER_RUNTIME_REDUCE_STEP_VERDICT_H_
#define CADRE_WORKER_RUNTIME_REDUCE_STEP_VERDICT_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cadre/communicator.h"
#include "cadre/parameter.h"
#include "cadre/span.h"
#include "cadre/status.h"
#include "worker_runtime/reduce/gradient_buckets.h"
#include "worker_runtime/reduce/step_tail.h"

namespace cadre::reduce {

// Whose gradients are not finite, and of what; empty where all are. Pure.
std::string DescribeNonFinite(const StepSummaries& summaries, Span<const Parameter> parameters,
                              int64_t step);

// The first gradient that is not finite in `buckets` after a hook, although those that it was given
// were; empty where all are. One that no rank used is left out: its place is to get back what it
// held. Pure.
std::string DescribeNonFiniteFromHook(const GradientBuckets& buckets, const std::vector<bool>& used,
                                      Span<const Parameter> parameters, int64_t step);

// Collective where any rank drifted: DATA_LOSS, naming the first parameter that differs.
Status CheckDrift(Communicator& communicator, Span<const Parameter> parameters,
                  const std::vector<int>& drifted, int64_t step, std::chrono::nanoseconds timeout);

}  // namespace cadre::reduce

#endif  // CADRE_WORKER_RUNTIME_REDUCE_STEP_VERDICT_H_
