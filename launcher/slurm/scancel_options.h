// scancel: its options, and which jobs they select. Pure.
#ifndef CADRE_LAUNCHER_SLURM_SCANCEL_OPTIONS_H_
#define CADRE_LAUNCHER_SLURM_SCANCEL_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/slurm/job_record.h"

namespace cadre::launcher {

struct ScancelOptions {
  enum class Answer { kNone, kHelp, kVersion };
  Answer answer = Answer::kNone;
  // Of jobs, elements of arrays and steps, in the order in which they were given.
  std::vector<WantedId> ids;
  // 0: jobs are cancelled. TERM and INT do the same, and KILL does it without grace.
  int signal = 0;
  bool Cancels() const;
  // Who gets a signal of a batch job: its script alone, or with its steps.
  bool to_script = false;
  bool to_all = false;
  // Users, as in SqueueOptions, and what else jobs have to fit.
  JobSelection selection;
  std::vector<std::string> users;
  bool me = false;
  // Asks before each job is cancelled.
  bool interactive = false;
  bool quiet = false;
  bool verbose = false;

  bool HasFilters() const {
    return me || !users.empty() || !selection.names.empty() || !selection.states.empty() ||
           !selection.nodes.empty() || !selection.partitions.empty();
  }
};

// INVALID_ARGUMENT: the message follows "scancel: ".
absl::StatusOr<ScancelOptions> ReadScancel(const std::vector<std::string>& arguments);

struct ToCancel {
  // Jobs and steps, those that wait first, so that none of them begins meanwhile.
  std::vector<JobRecord> records;
  // What Slurm says of ids that are not known, or of which no job fits the filters.
  std::vector<std::string> errors;
};

ToCancel ChooseToCancel(const std::vector<JobRecord>& records, const ScancelOptions& options);

std::string ScancelHelp();

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_SCANCEL_OPTIONS_H_
