#include <stdlib.h>

#include "base/status_macros.h"
#include "worker_runtime/assignment.h"
#include "worker_runtime/mpi_environment.h"
#include "worker_runtime/progress/progress_page.h"
#include "worker_runtime/store/agent_worker.h"
#include "worker_runtime/store/mpi_worker.h"
#include "worker_runtime/worker.h"
#include "worker_runtime/worker_environment.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<Worker>> Worker::Connect() {
  const GetVariable get = [](const char* name) { return getenv(name); };
  if (!StartedByCadre(get) && StartedByMpi(get)) {
    ASSIGN_OR_RETURN(const MpiEnvironment mpi, ReadMpiEnvironment(get));
    return store::ConnectUnderMpi(mpi);
  }
  if (!StandsBy(get)) {
    ASSIGN_OR_RETURN(const WorkerEnvironment environment, ReadWorkerEnvironment(get));
    return store::ConnectToAgent(environment);
  }
  ASSIGN_OR_RETURN(const Assignment assignment, AwaitAssignment(get));
  ASSIGN_OR_RETURN(const WorkerEnvironment environment,
                   ReadWorkerEnvironment(WithAssignment(assignment, get)));
  ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, store::ConnectToAgent(environment));
  // This process's own environment does not say who it is.
  const WorkerPlace& place = worker->place();
  progress::ProgressPage::MoveThisWorker({place.generation, place.rank, place.world_size});
  return worker;
}

}  // namespace cadre
