// Where commands about one job read of it: from a server, from the launcher on this machine that
// serves the job within its process, or from the files that a run left. Blocks, ten seconds at
// most.
#ifndef CADRE_LAUNCHER_COMMANDS_JOB_SOURCE_H_
#define CADRE_LAUNCHER_COMMANDS_JOB_SOURCE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/attach/control_client.h"
#include "launcher/attach/local_control.h"
#include "launcher/commands/log_times.h"
#include "launcher/commands/past_runs.h"
#include "launcher/flags/command.h"
#include "launcher/flags/settings.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"

namespace cadre::launcher {

// That of --log-dir, else those that are known (past_runs.h).
std::vector<std::string> LogDirectories(const Settings& settings);

// ControlFlags(), --log-dir and --run.
std::vector<Flag> JobSourceFlags();

class JobSource {
 public:
  // With --log-dir or --run files are read, with --server that one is asked. Else it is who knows
  // the job: a launcher on this machine, the server on its usual port, a run in ./logs or in the
  // log directories that were used last. NOT_FOUND: nobody does, where was looked, and which jobs
  // there are. `wanted` is the job's name, or that of the program from which the name was made;
  // empty: the job that began last of all that these know.
  static absl::StatusOr<JobSource> Of(const Settings& settings, const std::string& wanted);

  const std::string& job() const { return job_; }
  // Where nobody named it: which run this is, in a line.
  const std::string& chosen() const { return chosen_; }
  // The job as it is now; of a run that is over name, phase, verdict and timeline.
  absl::StatusOr<v1::JobStatus> Get();
  // FAILED_PRECONDITION: it has ended.
  absl::StatusOr<v1::JobStatus> Cancel(const std::string& reason);
  absl::StatusOr<v1::GetStacksReply> GetStacks(const v1::GetStacksRequest& request);
  absl::StatusOr<v1::ReadLogReply> ReadLog(const v1::ReadLogRequest& request);
  // Whether the workers' files themselves are read, and when what is in one of them was written.
  bool HasFiles() const { return server_ == nullptr; }
  std::vector<LogTime> LogTimes(const v1::ReadLogRequest& request) const;
  // Where the job's directory is; empty: it is not known.
  const std::string& log_dir() const { return log_dir_; }
  // Of a job that no server tells of: all its runs there.
  std::vector<PastRun> Runs() const;
  // The run that is read; nullopt: a server's or a launcher's.
  const std::optional<PastRun>& run() const { return run_; }

 private:
  explicit JobSource(std::string job) : job_(std::move(job)) {}
  static absl::StatusOr<JobSource> OfNewest(const Settings& settings);
  absl::Status UseFiles(const Settings& settings);
  absl::Status DoesNotRun() const;
  // The run whose output this request is about.
  PastRun RunOf(const v1::ReadLogRequest& request) const;
  absl::Status WithSuggestion(const absl::Status& not_found) const;

  std::string job_;
  std::string chosen_;
  std::string log_dir_;
  std::unique_ptr<ControlClient> server_;
  std::optional<LocalLauncher> launcher_;
  std::optional<PastRun> run_;
};

// Jobs of launchers on this machine that serve them, where nothing else is asked for.
std::vector<v1::JobStatus> LiveJobsHere(const Settings& settings);

// What runs on this machine, and the newest run of each job in the known log directories, where no
// server is named and the usual one does not answer.
struct JobsHere {
  std::vector<v1::JobStatus> live;
  // The newest first.
  std::vector<PastRun> runs;
  // A line for each directory that cannot be read.
  std::vector<std::string> left_out;
};
JobsHere FindJobsHere(const Settings& settings);
// Whether the command line says that files are to be read. CADRE_LOG_DIR, which is there for `cadre
// run`, only says where.
bool AsksForFiles(const Settings& settings);

// "; did you mean 'train'? The newest jobs are train, mnist"; of the names, the newest first, at
// most five. Empty without names.
std::string JobSuggestion(const std::string& job, const std::vector<std::string>& newest_first);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_JOB_SOURCE_H_
