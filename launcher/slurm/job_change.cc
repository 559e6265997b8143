#include "launcher/slurm/job_change.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/duration.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "launcher/slurm/option_values.h"
#include "launcher/spec/queue_values.h"

namespace cadre::launcher {
namespace {

// As a job's file may have it (launcher/spec/job_spec.cc).
constexpr int64_t kMaxPriority = 1000000;

absl::Status Expected(absl::string_view what, absl::string_view got) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", got ", Quoted(got)));
}

}  // namespace

bool JobChange::IsEmpty() const {
  return !held.has_value() && !priority.has_value() && !limit.has_value() && !begin.has_value() &&
         !nodes.has_value() && !exclude.has_value() && !labels.has_value();
}

absl::Status SetLimit(absl::string_view text, JobChange* change) {
  absl::string_view rest = text;
  int sign = 0;
  // "-1" stands for no limit.
  if (absl::ConsumePrefix(&rest, "+")) sign = 1;
  if (text != "-1" && absl::ConsumePrefix(&rest, "-")) sign = -1;
  ASSIGN_OR_RETURN(const absl::Duration limit, ParseSlurmTime(rest));
  if (sign != 0 && limit == absl::InfiniteDuration()) {
    return Expected("a time after the sign, as +30 (minutes)", text);
  }
  if (limit != absl::InfiniteDuration() && limit > absl::Seconds(kMaxDurationSeconds)) {
    return Expected("10 years at most", text);
  }
  change->limit = limit;
  change->limit_sign = sign;
  return absl::OkStatus();
}

absl::Status SetPriority(absl::string_view text, JobChange* change) {
  int64_t priority = 0;
  if (!absl::SimpleAtoi(text, &priority) || priority < -kMaxPriority || priority > kMaxPriority) {
    return Expected(absl::StrCat("a number from -", kMaxPriority, " to ", kMaxPriority), text);
  }
  change->priority = static_cast<int32_t>(priority);
  return absl::OkStatus();
}

absl::Status SetNice(absl::string_view text, JobChange* change) {
  int64_t nice = 0;
  if (!absl::SimpleAtoi(text, &nice)) return Expected("a number", text);
  change->priority = static_cast<int32_t>(-std::clamp(nice, -kMaxPriority, kMaxPriority));
  return absl::OkStatus();
}

absl::Status SetBegin(absl::string_view text, absl::Time now, absl::TimeZone zone,
                      JobChange* change) {
  ASSIGN_OR_RETURN(change->begin, ParseTimeToCome(text, now, zone));
  return absl::OkStatus();
}

absl::Status SetNodes(absl::string_view text, JobChange* change) {
  change->nodes.emplace();
  if (text.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(change->nodes, ParseSlurmHosts(text));
  return absl::OkStatus();
}

absl::Status SetExclude(absl::string_view text, JobChange* change) {
  change->exclude.emplace();
  if (text.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(change->exclude, ParseSlurmHosts(text));
  return absl::OkStatus();
}

absl::Status SetLabels(absl::string_view text, JobChange* change) {
  change->labels.emplace();
  if (text.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(change->labels, ParseSlurmConstraint(text));
  return absl::OkStatus();
}

absl::StatusOr<v1::JobUpdate> UpdateOf(const JobChange& change, const v1::JobStatus& job) {
  v1::JobUpdate update;
  if (change.held.has_value()) update.set_held(*change.held);
  if (change.priority.has_value()) update.set_priority(*change.priority);
  if (change.begin.has_value()) update.set_begin_unix_ms(absl::ToUnixMillis(*change.begin));
  if (change.limit.has_value()) {
    absl::Duration limit = *change.limit;
    if (change.limit_sign != 0) {
      if (job.limit_us() == 0) {
        return absl::InvalidArgumentError("the job has no time limit to which it could be added");
      }
      limit = absl::Microseconds(job.limit_us()) + limit * change.limit_sign;
      if (limit <= absl::ZeroDuration()) {
        return absl::InvalidArgumentError("nothing would be left of the time limit");
      }
    }
    *update.mutable_limit() =
        ToProto(limit == absl::InfiniteDuration() ? absl::ZeroDuration() : limit);
  }
  if (!change.nodes.has_value() && !change.exclude.has_value() && !change.labels.has_value()) {
    return update;
  }
  // All three are sent: what does not change, as the job has it.
  v1::Placement& placement = *update.mutable_placement();
  *placement.mutable_nodes() = job.placement().nodes();
  *placement.mutable_exclude() = job.placement().exclude();
  *placement.mutable_labels() = job.placement().labels();
  if (change.nodes.has_value()) {
    placement.mutable_nodes()->Assign(change.nodes->begin(), change.nodes->end());
  }
  if (change.exclude.has_value()) {
    placement.mutable_exclude()->Assign(change.exclude->begin(), change.exclude->end());
  }
  if (change.labels.has_value()) {
    placement.mutable_labels()->Assign(change.labels->begin(), change.labels->end());
  }
  return update;
}

}  // namespace cadre::launcher
