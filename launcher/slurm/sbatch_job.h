// Makes a job of sbatch's options: how many nodes and tasks it has, what each task needs, where its
// output goes, and which variables it has. Pure.
#ifndef CADRE_LAUNCHER_SLURM_SBATCH_JOB_H_
#define CADRE_LAUNCHER_SLURM_SBATCH_JOB_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launcher/slurm/sbatch_options.h"
#include "proto/control.pb.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

// The largest job that a server takes (rendezvous/job/jobs.cc): the script, its arguments and the
// variables that it has.
inline constexpr size_t kMaxBatchJobBytes = 512 << 10;

// Where, when and by whom a job is submitted.
struct Submitter {
  std::map<std::string, std::string> environment;
  // Absolute.
  std::string directory;
  std::string host;
  // From which "now+1hour" is counted, and the zone of times without one.
  absl::Time now = absl::UnixEpoch();
  absl::TimeZone zone = absl::UTCTimeZone();
};

struct BatchSource {
  // The whole script.
  std::string script;
  std::vector<std::string> args;
  // The name of the job if the user gives none: "train.sh", "wrap".
  std::string name;
  // What people see as the job's program, without the arguments: "/home/ann/train.sh".
  std::vector<std::string> program;
};

// The script of `sbatch --wrap=COMMAND`, and what it is called.
BatchSource WrappedCommand(const std::string& command);

// A batch job, complete. What is done differently than asked for is added to the options' notices.
// INVALID_ARGUMENT: options have wrong values or contradict each other, or the job is too large;
// the message names the options.
absl::StatusOr<v1::JobSpec> MakeBatchJob(const BatchSource& source, const Submitter& submitter,
                                         SbatchOptions& options);

// A job that runs this program on each node, as many workers as there are tasks, complete but for
// the interpreter of the program.
absl::StatusOr<v1::JobSpec> MakeProgramJob(const std::vector<std::string>& command,
                                           const Submitter& submitter, SbatchOptions& options);

// Changes a job that was read from `file`. INVALID_ARGUMENT also: an option says what is written
// into the file only.
absl::Status ChangeJob(absl::string_view file, const Submitter& submitter, SbatchOptions& options,
                       v1::JobSpec& spec);

// The elements that --array asks for; without it there are none, and it is one job.
absl::StatusOr<v1::ArrayElements> ArrayOf(const SbatchOptions& options);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_SLURM_SBATCH_JOB_H_
