// sacct: its options, and its table of jobs and steps. Pure.
#ifndef CADRE_LAUNCHER_SLURM_SACCT_TEXT_H_
#define CADRE_LAUNCHER_SLURM_SACCT_TEXT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launcher/slurm/job_record.h"
#include "launcher/slurm/squeue_text.h"

namespace cadre::launcher {

struct SacctOptions {
  enum class Answer { kNone, kHelp, kVersion, kFields };
  Answer answer = Answer::kNone;
  JobSelection selection;
  // Users as in SqueueOptions. Neither users nor `all_users`: those of the user of this process.
  std::vector<std::string> users;
  bool all_users = false;
  // Without steps.
  bool allocations_only = false;
  // Only jobs that ran or waited at some time in between.
  absl::Time from = absl::InfinitePast();
  absl::Time until = absl::InfiniteFuture();
  bool header = true;
  bool json = false;
  // Fields are parted by `delimiter` and not cut; `delimiter_at_end`: also after the last one.
  bool parsable = false;
  bool delimiter_at_end = false;
  std::string delimiter = "|";
  // The fields of -o.
  std::string format;
  // Each element of an array that waits has a line of its own.
  bool array_elements = false;
};

// INVALID_ARGUMENT: the message follows "sacct: ".
absl::StatusOr<SacctOptions> ReadSacct(const std::vector<std::string>& arguments,
                                       const std::map<std::string, std::string>& environment,
                                       absl::Time now, absl::TimeZone zone);

// The records that are shown, with the steps of jobs.
std::vector<JobRecord> ChooseForSacct(const std::vector<JobRecord>& records,
                                      const SacctOptions& options, absl::Time now);

// The table of the records that were chosen, or with --json the JSON. INVALID_ARGUMENT: the format
// has a field that is not known.
absl::StatusOr<std::string> SacctText(const std::vector<JobRecord>& chosen,
                                      const SacctOptions& options, const TextSurroundings& at);

std::string SacctHelp();
// The names of all fields.
std::string SacctFields();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_SACCT_TEXT_H_
