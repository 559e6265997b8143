// A job as `scontrol show job` describes it. Pure.
#ifndef CADRE_LAUNCHER_SLURM_SLURM_JOB_H_
#define CADRE_LAUNCHER_SLURM_SLURM_JOB_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre::launcher {

struct SlurmJob {
  // Its number, and of a task of an array that of the task: "12", "12_1".
  std::string number;
  // These are several tasks of an array.
  bool array = false;
  std::string name;
  // "PENDING", "RUNNING", "COMPLETING", "FAILED", ...
  std::string state;
  // Why it waits, or why it failed. Empty: there is nothing to say.
  std::string reason;
  // Of the batch script.
  int exit_code = 0;
  int exit_signal = 0;
  // "node[1-2]"; empty while it has none.
  std::string nodes;
  // Whole paths; may be empty.
  std::string script;
  std::string standard_output;
  std::string standard_error;
  // When its batch script was started last.
  absl::Time started = absl::InfiniteFuture();
};

// The text of `scontrol show job ID` where SLURM_TIME_FORMAT is "%s". INVALID_ARGUMENT: it is none.
absl::StatusOr<SlurmJob> ParseSlurmJob(absl::string_view text);

// It will not run again.
bool HasEnded(const SlurmJob& job);

// How it ended where Slurm alone knows that, as an exit status of `cadre run`.
int ExitStatusOf(const SlurmJob& job);

// For people: "is pending: Resources", "runs on node[1-2]", "ended: TIMEOUT".
std::string StateText(const SlurmJob& job);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_SLURM_JOB_H_
