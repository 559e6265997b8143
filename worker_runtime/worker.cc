// Worker::Connect makes a process a worker: of an agent, also after a standby
// (standby_assignment.h), or of another launcher. The calls are implemented by the workers of
// store/ and launched/, and the defaults of the interface by worker_interface.cc, which those link.
#include "cadre/worker.h"

#include <stdlib.h>

#include <chrono>
#include <memory>

#include "base/status_macros.h"
#include "worker_runtime/environment/read_launch.h"
#include "worker_runtime/environment/worker_environment.h"
#include "worker_runtime/launched/launched_worker.h"
#include "worker_runtime/progress/progress_page.h"
#include "worker_runtime/standby_assignment.h"
#include "worker_runtime/store/agent_worker.h"

namespace cadre {
namespace {

const char* GetEnvironment(const char* name) { return getenv(name); }

}  // namespace

Result<std::unique_ptr<Worker>> Worker::Connect() {
  const environment::GetVariable get = GetEnvironment;
  if (StandsBy(get)) {
    ASSIGN_OR_RETURN(const Assignment assignment, AwaitAssignment(get));
    ASSIGN_OR_RETURN(const environment::WorkerEnvironment environment,
                     environment::ReadWorkerEnvironment(WithAssignment(assignment, get)));
    ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, store::ConnectToAgent(environment));
    // The environment of a standby lacks its rank.
    const WorkerPlace& place = worker->place();
    progress::ProgressPage::MoveThisWorker({place.generation, place.rank, place.world_size});
    return worker;
  }
  if (environment::StartedByCadre(get)) {
    ASSIGN_OR_RETURN(const environment::WorkerEnvironment environment,
                     environment::ReadWorkerEnvironment(get));
    return store::ConnectToAgent(environment);
  }
  ASSIGN_OR_RETURN(const environment::Launch launch, environment::ReadLaunch(get));
  return launched::Connect(launch, get);
}

Result<std::unique_ptr<Worker>> Worker::Connect(const WorkerOptions& options) {
  ASSIGN_OR_RETURN(const environment::Launch launch,
                   environment::LaunchAt(options.rank, options.world_size, options.address));
  if (options.timeout <= std::chrono::nanoseconds(0)) {
    return InvalidArgumentError("WorkerOptions::timeout must be more than 0");
  }
  launched::Options how;
  how.connect_timeout = options.timeout;
  return launched::Connect(launch, GetEnvironment, how);
}

}  // namespace cadre
