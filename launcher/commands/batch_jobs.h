// What cadre submit and sbatch share: reading a batch script, submitting a job, waiting for its
// end.
#ifndef CADRE_LAUNCHER_COMMANDS_BATCH_JOBS_H_
#define CADRE_LAUNCHER_COMMANDS_BATCH_JOBS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/attach/control_client.h"
#include "launcher/slurm/option_parser.h"
#include "launcher/slurm/sbatch_job.h"
#include "launcher/slurm/sbatch_options.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

// How errors name what was read from standard input.
inline constexpr char kStandardInput[] = "standard input";

// All that there is to read, until its end. INVALID_ARGUMENT: more than a job may have.
absl::StatusOr<std::string> ReadStandardInput();

// Whether the file begins with "#!". False if it is no regular file, or cannot be read.
bool IsBatchScript(const std::string& path);

// Reads the script; it may be a pipe. INVALID_ARGUMENT or as for open(): the message names the
// file.
absl::StatusOr<std::string> ReadBatchScript(const std::string& path);

// This process. INVALID_ARGUMENT: its directory was removed.
absl::StatusOr<Submitter> ThisSubmitter();

// A job, and the options that it was made with.
struct ReadyJob {
  v1::JobSpec spec;
  SbatchOptions options;
  // The elements of the array that is submitted; if it has no indices, one job is.
  v1::ArrayElements array;
};

// The job of a script with its "#SBATCH" lines, the SBATCH_* variables of this process and the
// options of the command line. `file` names the script in errors. INVALID_ARGUMENT.
absl::StatusOr<ReadyJob> MakeReady(const BatchSource& source, const std::string& file,
                                   const std::vector<GivenOption>& command_line);

// Submits the job as this process's user, with an absolute log directory. Returns the status of the
// job, or of an array's first element. FAILED_PRECONDITION: it is a batch job or an array, or has
// to wait for something, and the server is of an earlier version that does not know this.
absl::StatusOr<v1::JobStatus> SubmitJob(ControlClient& client, const ReadyJob& ready);

// Whether a server would refuse the job because of what it asks for.
absl::Status CheckJob(const v1::JobSpec& spec);

// "2 nodes with 4 tasks on each", of an array followed by "for each of 10 elements": for
// --test-only.
std::string JobSizeText(const ReadyJob& ready);

// Waits until the job ends, and returns what `on_end` makes of its verdict, or the status of a
// command that could not ask the server any more, which was said.
int AwaitEnd(ControlClient& client, const v1::JobStatus& job,
             const std::function<int(const v1::JobStatus&)>& on_end);

// The same for all elements of the array, if the job is the first element of one. Returns the
// largest of the statuses.
int AwaitAll(ControlClient& client, const v1::JobStatus& first,
             const std::function<int(const v1::JobStatus&)>& on_end);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_BATCH_JOBS_H_
