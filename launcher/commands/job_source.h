// Reads a job for commands about one job: from a server, from a launcher on this machine that
// serves the job in its process, or from the files that a run left. Blocks for ten seconds at most.
#ifndef CADRE_LAUNCHER_COMMANDS_JOB_SOURCE_H_
#define CADRE_LAUNCHER_COMMANDS_JOB_SOURCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/attach/control_client.h"
#include "launcher/attach/local_control.h"
#include "launcher/commands/logs.h"
#include "launcher/commands/past_runs.h"
#include "launcher/flags/command.h"
#include "launcher/flags/settings.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "proto/spec.pb.h"

namespace cadre::launcher {

// The directory of --log-dir, or the known log directories (past_runs.h).
std::vector<std::string> LogDirectories(const Settings& settings);

// ControlFlags(), --log-dir and --run.
std::vector<Flag> JobSourceFlags();

// What the help says about the argument JOB.
inline constexpr char kJobHelp[] =
    "JOB is the name of a job, or the id that 'cadre status' shows for one that was submitted.";

// What to ask a server about this job again. Its id, as a newer job may take its name; a server of
// an earlier version, which does not tell when a job was submitted, knows none by its id.
std::string LastingName(const v1::JobStatus& job);

class JobSource {
 public:
  // With --log-dir or --run files are read, and with --server that server is asked. Otherwise the
  // first source that has the job is used: a launcher on this machine, the server on its usual
  // port, a run in ./logs or in the log directories used last. NOT_FOUND: none has it; the message
  // lists the places and the jobs that exist. `wanted` is the name of the job, its id at the
  // server, or the name of the program from which its name was made; empty: the job that began last
  // of all known jobs.
  static absl::StatusOr<JobSource> Open(const Settings& settings, const std::string& wanted);

  // The name of the job; until a server has told it, what the user wrote.
  const std::string& job() const { return job_; }
  // If the user named no job, a line that says which run was chosen; otherwise empty.
  const std::string& chosen() const { return chosen_; }
  // The job's current status; for a run that is over only its name, phase, verdict and timeline.
  // Each call is about the job of the first one. FAILED_PRECONDITION: a newer job has its name.
  absl::StatusOr<v1::JobStatus> Get();
  // FAILED_PRECONDITION: the job has ended.
  absl::StatusOr<v1::JobStatus> Cancel(const std::string& reason);
  // As ControlClient has them. FAILED_PRECONDITION also: the job is one of `cadre run`, which is in
  // no queue.
  absl::StatusOr<v1::JobStatus> Requeue(const std::string& reason, bool hold);
  absl::StatusOr<v1::JobStatus> Update(const v1::JobUpdate& update);
  absl::StatusOr<v1::JobStatus> Signal(int signal, v1::SignalJobRequest::Target target);
  // The request need not name the job: it is this one.
  absl::StatusOr<v1::GetStacksReply> GetStacks(v1::GetStacksRequest request);
  absl::StatusOr<v1::ReadLogReply> ReadLog(v1::ReadLogRequest request);
  // Whether the workers' log files are read directly, and not through a server; and when the
  // content of one of them was written.
  bool HasFiles() const { return server_ == nullptr; }
  std::vector<LogTime> LogTimes(const v1::ReadLogRequest& request) const;
  // The directory that contains the job's; empty: it is not known.
  const std::string& log_dir() const { return log_dir_; }
  // All runs of the job in that directory, if no server has the job.
  std::vector<PastRun> Runs() const;
  // The run that is read; nullopt: a server or a launcher is asked.
  const std::optional<PastRun>& run() const { return run_; }

 private:
  explicit JobSource(std::string job) : job_(std::move(job)), asked_(job_) {}
  static absl::StatusOr<JobSource> OpenNewest(const Settings& settings);
  absl::Status UseFiles(const Settings& settings);
  absl::StatusOr<v1::JobStatus> AskServer();
  absl::Status NotRunningError() const;
  // Of a job of `cadre run` on this machine.
  absl::Status NotSubmittedError(const std::string& instead) const;
  // The run whose output is requested.
  PastRun RunOf(const v1::ReadLogRequest& request) const;
  absl::Status WithSuggestion(const absl::Status& not_found) const;

  std::string job_;
  // What the server is asked about: what the user wrote, then LastingName(). And the id of the job;
  // 0: not known, or it has none.
  std::string asked_;
  uint64_t id_ = 0;
  std::string chosen_;
  std::string log_dir_;
  std::unique_ptr<ControlClient> server_;
  std::optional<LocalLauncher> launcher_;
  std::optional<PastRun> run_;
};

// The jobs of launchers on this machine that serve them, unless the user asks for another source.
std::vector<v1::JobStatus> LocalLiveJobs(const Settings& settings);

// The jobs that run on this machine, and the newest run of each job in the known log directories.
// Used if no server is named and the usual one does not answer.
struct LocalJobs {
  std::vector<v1::JobStatus> live;
  // The newest first.
  std::vector<PastRun> runs;
  // One line for each directory that cannot be read.
  std::vector<std::string> left_out;
};
LocalJobs FindLocalJobs(const Settings& settings);
// Whether the command line asks for files. CADRE_LOG_DIR does not: it is set for `cadre run`, and
// only tells where they are.
bool AsksForFiles(const Settings& settings);

// Returns "; did you mean 'train'? The newest jobs are train, mnist", with at most five of the
// names, the newest first. Empty if there are no names.
std::string JobSuggestion(const std::string& job, const std::vector<std::string>& newest_first);

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_COMMANDS_JOB_SOURCE_H_
