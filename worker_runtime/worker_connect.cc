#include <stdlib.h>

#include "base/status_macros.h"
#include "cadre/worker.h"
#include "worker_runtime/assignment.h"
#include "worker_runtime/environment/mpi_environment.h"
#include "worker_runtime/environment/worker_environment.h"
#include "worker_runtime/progress/progress_page.h"
#include "worker_runtime/store/agent_worker.h"
#include "worker_runtime/store/mpi_worker.h"

namespace cadre {

Result<std::unique_ptr<Worker>> Worker::Connect() {
  const environment::GetVariable get = [](const char* name) { return getenv(name); };
  if (!environment::StartedByCadre(get) && environment::StartedByMpi(get)) {
    ASSIGN_OR_RETURN(const environment::MpiEnvironment mpi, environment::ReadMpiEnvironment(get));
    return store::ConnectUnderMpi(mpi);
  }
  if (!StandsBy(get)) {
    ASSIGN_OR_RETURN(const environment::WorkerEnvironment environment,
                     environment::ReadWorkerEnvironment(get));
    return store::ConnectToAgent(environment);
  }
  ASSIGN_OR_RETURN(const Assignment assignment, AwaitAssignment(get));
  ASSIGN_OR_RETURN(const environment::WorkerEnvironment environment,
                   environment::ReadWorkerEnvironment(WithAssignment(assignment, get)));
  ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, store::ConnectToAgent(environment));
  // This process's own environment does not say who it is.
  const WorkerPlace& place = worker->place();
  progress::ProgressPage::MoveThisWorker({place.generation, place.rank, place.world_size});
  return worker;
}

}  // namespace cadre
