// The defaults of Worker's virtual functions, a library of their own: every worker links it, also
// where nothing connects. Worker::Connect is in worker.cc.
#include <chrono>
#include <string_view>

#include "cadre/worker.h"

namespace cadre {

Status Worker::AnnounceRejoin(std::function<void()>) {
  return FailedPreconditionError("this worker cannot rejoin");
}

Result<std::unique_ptr<Worker>> Worker::Rejoin(std::string_view, std::chrono::nanoseconds) {
  return FailedPreconditionError("this worker cannot rejoin");
}

}  // namespace cadre
