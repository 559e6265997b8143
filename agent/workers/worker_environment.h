// The environment and arguments of one worker: what torchrun sets, with the same meaning, and
// Cadre's own. Pure; any thread.
#ifndef CADRE_AGENT_WORKERS_WORKER_ENVIRONMENT_H_
#define CADRE_AGENT_WORKERS_WORKER_ENVIRONMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/workers/worker_options.h"
#include "proto/rendezvous.pb.h"
#include "proto/spec.pb.h"

namespace cadre::agent {

struct WorkerEnvironmentOptions {
  std::string job;
  uint64_t generation = 0;
  v1::Assign assign;
  v1::JobSpec spec;
  // Inherited NAME=value; of repeated names the first counts, as getenv has it.
  std::vector<std::string> base;
  std::string socket;      // CADRE_AGENT
  std::string token_file;  // CADRE_TOKEN_FILE
  // TORCHELASTIC_USE_AGENT_STORE: an agent serves PyTorch's store at MASTER_ADDR:MASTER_PORT.
  bool agent_store = false;
  WorkerOptions workers;
};

// NAME=value, sorted by name. `error_file` is where the worker leaves a torchelastic error file.
// INVALID_ARGUMENT: an unknown env_style, or an inherited CUDA_VISIBLE_DEVICES that names too few
// GPUs for this worker.
absl::StatusOr<std::vector<std::string>> BuildWorkerEnvironment(
    const WorkerEnvironmentOptions& options, uint32_t local_rank, const std::string& error_file);

// Whether every worker gets a variable of this name from Cadre, so that a job's own has no effect.
bool IsWorkersOwn(absl::string_view name);

// Whether it is one that a worker gets as srun or mpirun would set it, and that depends on its
// place.
bool IsOfALaunchersStyle(absl::string_view name);

// Those of a worker's variables (NAME=value) that depend on its assignment, and the others. The
// first are what a process that stands by is told with its place.
std::vector<std::string> AssignmentOf(const std::vector<std::string>& environment);
std::vector<std::string> WithoutAssignment(const std::vector<std::string>& environment);

// Replaces torchrun's macro ${local_rank} in each argument.
std::vector<std::string> BuildWorkerArguments(const v1::JobSpec& spec, uint32_t local_rank);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_WORKERS_WORKER_ENVIRONMENT_H_
