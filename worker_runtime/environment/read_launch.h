// Who started this process, where it was not Cadre. Pure.
#ifndef CADRE_WORKER_RUNTIME_ENVIRONMENT_READ_LAUNCH_H_
#define CADRE_WORKER_RUNTIME_ENVIRONMENT_READ_LAUNCH_H_

#include <string>

#include "cadre/result.h"
#include "worker_runtime/environment/launch.h"
#include "worker_runtime/environment/variables.h"

namespace cadre::environment {

// Decides by the variables who started this process: torchrun, Open MPI's mpirun, whoever set RANK
// and its like, or srun. FAILED_PRECONDITION: nobody, or something is missing; INVALID_ARGUMENT:
// variables make no sense or contradict each other. Both say what to do.
Result<Launch> ReadLaunch(const GetVariable& get);

// As ReadLaunch, for who says it all itself; `address` is rank 0's, "HOST:PORT".
Result<Launch> LaunchAt(int rank, int world_size, const std::string& address);

// Who gave this process a rank among several, in words: "torchrun (RANK=1)". Empty: nobody did.
std::string WhoGaveARank(const GetVariable& get);

}  // namespace cadre::environment

#endif  // CADRE_WORKER_RUNTIME_ENVIRONMENT_READ_LAUNCH_H_
