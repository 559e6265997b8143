// Turns an assignment into the frames that start its workers: environment, paths, binding. Makes
// the log directories. One thread.
#ifndef CADRE_AGENT_WORKERS_WORKER_START_H_
#define CADRE_AGENT_WORKERS_WORKER_START_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/run_files.h"
#include "agent/supervisor/frames.h"
#include "agent/workers/output_options.h"
#include "agent/workers/worker_environment.h"

namespace cadre::agent {

struct WorkerStartOptions {
  WorkerEnvironmentOptions environment;
  OutputOptions output;
  // Where error files go when there is no log directory.
  std::string scratch;
  // An earlier generation had its log files there: a job does not end because the next one cannot.
  bool had_logs = false;
};

// Makes log_dir/below for a worker's log files, as MakeRunDirectory. A failure's errno goes to
// `error`; ETIMEDOUT: its file system does not answer.
using MakeLogDirectory =
    std::function<absl::Status(const std::string& log_dir, const std::string& below, int* error)>;

// Why a log directory could not be made. With a full disk, or one that does not answer, or where an
// earlier generation had one, that is no error: workers start without.
struct DirectoryFailure {
  int error = 0;  // errno; 0: no directory is to blame
  std::string path;
};

// One frame for each local rank, in order. All or none; `failure`, where given, tells of a
// directory that could not be made, also where the frames are there and name no log files.
absl::StatusOr<std::vector<supervisor::StartFrame>> PrepareWorkers(
    const WorkerStartOptions& options, DirectoryFailure* failure = nullptr,
    const MakeLogDirectory& make = MakeRunDirectory);

// How a process is started that stands by for any of these workers. nullopt: what they are started
// with differs by more than their assignments.
std::optional<supervisor::StartFrame> StandbyFor(
    const std::vector<supervisor::StartFrame>& workers);

// One of these. Its files are beside the workers' directories, in standby_<index>.
supervisor::StartFrame StandbyFrame(supervisor::StartFrame standby, int index,
                                    const std::string& progress_file);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_WORKER_START_H_
