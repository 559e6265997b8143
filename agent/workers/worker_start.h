// Turns an assignment into the frames that start its workers: environment, arguments, paths,
// binding. The environment has torchrun's variables, with the same meaning, and Cadre's own.
// PrepareWorkers makes the log directories and is used by one thread; the rest is pure.
#ifndef CADRE_AGENT_WORKERS_WORKER_START_H_
#define CADRE_AGENT_WORKERS_WORKER_START_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/run_files.h"
#include "agent/supervisor/frames.h"
#include "agent/workers/worker_options.h"
#include "proto/rendezvous.pb.h"
#include "proto/spec.pb.h"

namespace cadre::agent {

struct WorkerEnvironmentOptions {
  std::string job;
  uint64_t generation = 0;
  v1::Assign assign;
  v1::JobSpec spec;
  // Inherited NAME=value entries; of duplicates the first counts, as with getenv.
  std::vector<std::string> base;
  std::string socket;      // CADRE_AGENT
  std::string token_file;  // CADRE_TOKEN_FILE
  // TORCHELASTIC_USE_AGENT_STORE: whether an agent serves PyTorch's store at
  // MASTER_ADDR:MASTER_PORT.
  bool agent_store = false;
  WorkerOptions workers;
};

// NAME=value entries, sorted by name. The script of a batch job gets those of the job alone, and a
// task of a step also its numbers as srun would set them. `error_file` is the path for the worker's
// torchelastic error file. INVALID_ARGUMENT: an unknown env_style, or an inherited
// CUDA_VISIBLE_DEVICES that names too few GPUs for this worker.
absl::StatusOr<std::vector<std::string>> BuildWorkerEnvironment(
    const WorkerEnvironmentOptions& options, uint32_t local_rank, const std::string& error_file);

// Whether Cadre sets this variable for every worker, so that a job's own value has no effect.
bool IsReservedVariable(absl::string_view name);

// Whether a worker gets this variable in the style of srun or mpirun, with a value that depends on
// its rank.
bool IsLauncherStyleVariable(absl::string_view name);

// The worker's variables (NAME=value) that depend on its assignment, and the others. The first are
// sent to a standby process with its rank.
std::vector<std::string> AssignmentOf(const std::vector<std::string>& environment);
std::vector<std::string> WithoutAssignment(const std::vector<std::string>& environment);

// Replaces torchrun's macro ${local_rank} in each argument, but not in those of scripts and steps.
std::vector<std::string> BuildWorkerArguments(const v1::JobSpec& spec, uint32_t local_rank);

struct WorkerStartOptions {
  WorkerEnvironmentOptions environment;
  OutputOptions output;
  // This node's name, for %N in the names of output files.
  std::string host;
  // When this agent began, in milliseconds since 1970: what output files that the user named
  // contain from before is removed when the job begins.
  int64_t began_unix_ms = 0;
  // The directory for error files if there is no log directory.
  std::string scratch;
  // An earlier generation had its log files there, so failing to make new ones does not end the
  // job.
  bool had_logs = false;
};

// Makes log_dir/below for a worker's log files, as MakeRunDirectory does. On failure errno is
// stored in `error`; ETIMEDOUT: the file system does not answer.
using MakeLogDirectory =
    std::function<absl::Status(const std::string& log_dir, const std::string& below, int* error)>;

// Why a log directory could not be made. If the disk is full or does not answer, or an earlier
// generation had logs, that is not an error: workers start without.
struct DirectoryFailure {
  int error = 0;  // errno; 0: no directory failed
  std::string path;
};

// Returns one frame for each local rank, in order, or an error for all. If `failure` is given, it
// is set if a directory could not be made, also if the frames are returned without log files.
absl::StatusOr<std::vector<supervisor::StartFrame>> PrepareWorkers(
    const WorkerStartOptions& options, DirectoryFailure* failure = nullptr,
    const MakeLogDirectory& make = MakeRunDirectory);

// The frame for a standby of any of these workers. nullopt: the workers' frames differ by more than
// their assignments.
std::optional<supervisor::StartFrame> StandbyFor(
    const std::vector<supervisor::StartFrame>& workers);

// The frame of one standby. Its files are beside the workers' directories, in standby_<index>.
supervisor::StartFrame StandbyFrame(supervisor::StartFrame standby, int index,
                                    const std::string& progress_file);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_WORKER_START_H_
