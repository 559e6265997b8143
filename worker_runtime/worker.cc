#include "worker_runtime/worker.h"

#include <stdlib.h>

#include "base/status_macros.h"
#include "worker_runtime/agent_worker.h"
#include "worker_runtime/worker_environment.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<Worker>> Worker::Connect() {
  ASSIGN_OR_RETURN(const WorkerEnvironment environment,
                   ReadWorkerEnvironment([](const char* name) { return getenv(name); }));
  return ConnectToAgent(environment);
}

absl::Status Worker::AnnounceRejoin(std::function<void()>) {
  return absl::FailedPreconditionError("this worker cannot rejoin");
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Rejoin(absl::string_view, absl::Duration) {
  return absl::FailedPreconditionError("this worker cannot rejoin");
}

}  // namespace cadre
