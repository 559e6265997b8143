// RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun, a
// script or a person sets them; what they leave out in a job step of Slurm is Slurm's. Pure.
#ifndef CADRE_WORKER_RUNTIME_ENVIRONMENT_PLAIN_ENVIRONMENT_H_
#define CADRE_WORKER_RUNTIME_ENVIRONMENT_PLAIN_ENVIRONMENT_H_

#include <optional>

#include "cadre/result.h"
#include "worker_runtime/environment/launch.h"
#include "worker_runtime/environment/variables.h"

namespace cadre::environment {

// TORCHELASTIC_RUN_ID is set.
bool StartedByTorchrun(const GetVariable& get);

// nullopt: neither these variables nor Slurm's say anything. FAILED_PRECONDITION: some are missing;
// says which. INVALID_ARGUMENT: no numbers, or two that contradict each other; says which.
Result<std::optional<Launch>> ReadPlainEnvironment(const GetVariable& get);

}  // namespace cadre::environment

#endif  // CADRE_WORKER_RUNTIME_ENVIRONMENT_PLAIN_ENVIRONMENT_H_
