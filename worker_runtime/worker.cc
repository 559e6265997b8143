#include "worker_runtime/worker.h"

#include <stdlib.h>

#include "base/status_macros.h"
#include "worker_runtime/agent_worker.h"
#include "worker_runtime/mpi_environment.h"
#include "worker_runtime/mpi_worker.h"
#include "worker_runtime/progress/progress_page.h"
#include "worker_runtime/worker_environment.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<Worker>> Worker::Connect() {
  const GetVariable get = [](const char* name) { return getenv(name); };
  if (!StartedByCadre(get) && StartedByMpi(get)) {
    ASSIGN_OR_RETURN(const MpiEnvironment mpi, ReadMpiEnvironment(get));
    return ConnectUnderMpi(mpi);
  }
  ASSIGN_OR_RETURN(const WorkerEnvironment environment, ReadWorkerEnvironment(get));
  ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, ConnectToAgent(environment));
  if (environment.standby != 0) {
    // The environment does not say who this process is.
    const WorkerPlace& place = worker->place();
    progress::ProgressPage::MoveThisWorker({place.generation, place.rank, place.world_size});
  }
  return worker;
}

absl::Status Worker::AnnounceRejoin(std::function<void()>) {
  return absl::FailedPreconditionError("this worker cannot rejoin");
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Rejoin(absl::string_view, absl::Duration) {
  return absl::FailedPreconditionError("this worker cannot rejoin");
}

}  // namespace cadre
