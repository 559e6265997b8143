// The variables in which Open MPI's mpirun tells a process about itself. Pure.
#ifndef CADRE_WORKER_RUNTIME_ENVIRONMENT_MPI_ENVIRONMENT_H_
#define CADRE_WORKER_RUNTIME_ENVIRONMENT_MPI_ENVIRONMENT_H_

#include "cadre/result.h"
#include "worker_runtime/environment/launch.h"
#include "worker_runtime/environment/variables.h"

namespace cadre::environment {

// Open MPI's mpirun started this process.
bool StartedByMpi(const GetVariable& get);

// Where StartedByMpi. FAILED_PRECONDITION: a variable is missing; INVALID_ARGUMENT: they make no
// sense. Both say what to do.
Result<Launch> ReadMpiEnvironment(const GetVariable& get);

}  // namespace cadre::environment

#endif  // CADRE_WORKER_RUNTIME_ENVIRONMENT_MPI_ENVIRONMENT_H_
