// Cadre's environment variables, as a process reads them about itself. Pure but for reading the
// token file.
#ifndef CADRE_WORKER_RUNTIME_ENVIRONMENT_WORKER_ENVIRONMENT_H_
#define CADRE_WORKER_RUNTIME_ENVIRONMENT_WORKER_ENVIRONMENT_H_

#include <cstdint>
#include <string>

#include "cadre/result.h"
#include "worker_runtime/environment/variables.h"

namespace cadre::environment {

struct WorkerEnvironment {
  std::string agent_socket;     // CADRE_AGENT, a path
  std::string token;            // content of CADRE_TOKEN_FILE; never logged
  uint64_t generation = 0;      // CADRE_GENERATION
  int rank = 0;                 // RANK
  int progress_fd = -1;         // CADRE_PROGRESS_FD; -1 when there is none
  std::string checkpoint_file;  // CADRE_CHECKPOINT_FILE; may be empty
};

// Whether CADRE_AGENT is set.
bool StartedByCadre(const GetVariable& get);

// FAILED_PRECONDITION when not StartedByCadre; INVALID_ARGUMENT naming the variable that makes
// no sense; what ReadTokenFile says about the token's file.
Result<WorkerEnvironment> ReadWorkerEnvironment(const GetVariable& get);

}  // namespace cadre::environment

#endif  // CADRE_WORKER_RUNTIME_ENVIRONMENT_WORKER_ENVIRONMENT_H_
