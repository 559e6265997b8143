// A worker that mpirun started, without an agent on its node. Rank 0 serves the store from within
// its process; the others find it, and the token that it wants, in a file that only this user can
// read: of the home directory that the nodes share, or, on one node, of the machine's.
//
// There is nobody to start a worker again, to see that one hangs or to keep its logs: mpirun ends
// all of them when one fails.
#ifndef CADRE_WORKER_RUNTIME_STORE_MPI_WORKER_H_
#define CADRE_WORKER_RUNTIME_STORE_MPI_WORKER_H_

#include <chrono>
#include <memory>

#include "absl/time/time.h"
#include "cadre/result.h"
#include "cadre/worker.h"
#include "worker_runtime/environment/mpi_environment.h"

namespace cadre::store {

struct MpiWorkerOptions {
  // For all ranks to come, however long their programs take until then.
  std::chrono::nanoseconds connect_timeout = std::chrono::minutes(5);
  // For the others to end before rank 0 takes the store with it.
  std::chrono::nanoseconds farewell_timeout = std::chrono::seconds(5);
};

// As Worker::Connect; returns when all ranks are there. DEADLINE_EXCEEDED naming who is missing.
// Several workers may live in one process.
Result<std::unique_ptr<Worker>> ConnectUnderMpi(const environment::MpiEnvironment& environment,
                                                const MpiWorkerOptions& options = {});

}  // namespace cadre::store

#endif  // CADRE_WORKER_RUNTIME_STORE_MPI_WORKER_H_
