#include "cadre/worker.h"

#include <chrono>
#include <string_view>

namespace cadre {

Status Worker::AnnounceRejoin(std::function<void()>) {
  return FailedPreconditionError("this worker cannot rejoin");
}

Result<std::unique_ptr<Worker>> Worker::Rejoin(std::string_view, std::chrono::nanoseconds) {
  return FailedPreconditionError("this worker cannot rejoin");
}

}  // namespace cadre
