// Changes to a job that was submitted, as `scontrol update` and `cadre update` have them. Pure.
#ifndef CADRE_LAUNCHER_SLURM_JOB_CHANGE_H_
#define CADRE_LAUNCHER_SLURM_JOB_CHANGE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/job.pb.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

// What is absent stays.
struct JobChange {
  std::optional<bool> held;
  std::optional<int32_t> priority;
  // Infinite: there is no limit. With `limit_sign` 1 or -1 it is added to the job's limit, or
  // subtracted.
  std::optional<absl::Duration> limit;
  int limit_sign = 0;
  std::optional<absl::Time> begin;
  // As in Placement.
  std::optional<std::vector<std::string>> nodes;
  std::optional<std::vector<std::string>> exclude;
  std::optional<std::vector<std::string>> labels;

  bool IsEmpty() const;
};

// Values of the properties, in Slurm's forms; an empty list of nodes or labels means none.
// INVALID_ARGUMENT: the message says what was expected.
absl::Status SetLimit(absl::string_view text, JobChange* change);
absl::Status SetPriority(absl::string_view text, JobChange* change);
absl::Status SetNice(absl::string_view text, JobChange* change);
absl::Status SetBegin(absl::string_view text, absl::Time now, absl::TimeZone zone,
                      JobChange* change);
absl::Status SetNodes(absl::string_view text, JobChange* change);
absl::Status SetExclude(absl::string_view text, JobChange* change);
absl::Status SetLabels(absl::string_view text, JobChange* change);

// What the server is asked for, to change this job. INVALID_ARGUMENT: the job has no limit, to
// which something could be added.
absl::StatusOr<v1::JobUpdate> UpdateOf(const JobChange& change, const v1::JobStatus& job);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_JOB_CHANGE_H_
