// What Slurm tells a task of a job step (srun) about itself. Pure.
#ifndef CADRE_WORKER_RUNTIME_ENVIRONMENT_SLURM_STEP_H_
#define CADRE_WORKER_RUNTIME_ENVIRONMENT_SLURM_STEP_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "cadre/result.h"
#include "worker_runtime/environment/variables.h"

namespace cadre::environment {

struct SlurmStep {
  std::string name;  // "slurm-17.0"
  int rank = 0;
  int tasks = 1;
  // The variable that says how many tasks there are.
  const char* tasks_variable = "SLURM_NTASKS";
  std::optional<int> local_rank;
  int nodes = 1;
  std::string first_host;  // loopback where the step has one node
  // Of this step's own, as scripts choose it: 15000 and the last four digits of the job's number.
  uint16_t port = 0;
};

// nullopt: this process is no task of a step. A batch script itself is none: it has the job's
// variables, but runs on the first node alone. INVALID_ARGUMENT: a variable is no number.
Result<std::optional<SlurmStep>> ReadSlurmStep(const GetVariable& get);

// "node[07-12,3],gpu1" to "node07".
std::string FirstHost(absl::string_view list);

}  // namespace cadre::environment

#endif  // CADRE_WORKER_RUNTIME_ENVIRONMENT_SLURM_STEP_H_
