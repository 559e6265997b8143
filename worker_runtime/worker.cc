#include "worker_runtime/worker.h"

namespace cadre {

absl::Status Worker::AnnounceRejoin(std::function<void()>) {
  return absl::FailedPreconditionError("this worker cannot rejoin");
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Rejoin(absl::string_view, absl::Duration) {
  return absl::FailedPreconditionError("this worker cannot rejoin");
}

}  // namespace cadre
