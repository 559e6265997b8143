// Values that say when a job may leave a cluster's queue, in the forms that Slurm has for them:
// times, and dependencies on other jobs. Used for the job spec and for the options of Slurm's
// commands. Pure. Every error says what was expected.
#ifndef CADRE_LAUNCHER_SPEC_QUEUE_VALUES_H_
#define CADRE_LAUNCHER_SPEC_QUEUE_VALUES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

// "2026-11-29", "2026-11-29T12:30", "12:30", "11/29", "today", "noon", "now-2hours", "now+1day": a
// time without a date is today's.
absl::StatusOr<absl::Time> ParseSlurmDate(absl::string_view text, absl::Time now,
                                          absl::TimeZone zone);

// The same for a time to come, as --begin and --deadline have it: a time without a date is the
// next one, today or tomorrow. Also "tomorrow", "midnight", "teatime" and "4:30pm".
absl::StatusOr<absl::Time> ParseTimeToCome(absl::string_view text, absl::Time now,
                                           absl::TimeZone zone);

// One of Slurm's words for the jobs that a job waits for: "afterok:12:13", "after:12+5" (minutes),
// "singleton".
absl::StatusOr<std::vector<v1::Dependency>> ParseDependency(absl::string_view text);

// The value of --dependency: such words, separated by ',' if all of them are needed or by '?' if
// one is enough. Sets `dependencies` and `any_dependency`.
absl::Status ParseDependencies(absl::string_view text, v1::QueueOptions* options);

// The same text for the dependencies of a job; empty: it has none.
std::string DependenciesText(const v1::QueueOptions& options);

// The indices of an array's elements, ascending, as "0-9,12".
std::string IndicesText(const std::vector<uint32_t>& indices);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SPEC_QUEUE_VALUES_H_
