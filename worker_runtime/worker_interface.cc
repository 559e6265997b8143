// The defaults of Worker's virtual functions, a library of their own: every worker links it, also
// where nothing connects. Worker::Connect is in worker.cc.
#include <chrono>
#include <string_view>

#include "cadre/worker.h"

namespace cadre {
namespace {

Status CannotRejoin() {
  return FailedPreconditionError("this worker cannot rejoin: Cadre's agent did not start it");
}

}  // namespace

Status Worker::AnnounceRejoin(std::function<void()>) { return CannotRejoin(); }

Result<std::unique_ptr<Worker>> Worker::Rejoin(std::string_view, std::chrono::nanoseconds) {
  return CannotRejoin();
}

}  // namespace cadre
