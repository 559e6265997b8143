// The work of cadre.h.
#include "cadre/work.h"

#include "base/status_macros.h"
#include "cadre.h"
#include "cadre/wait_or_abort.h"
#include "worker_runtime/c/arguments.h"
#include "worker_runtime/c/boundary.h"
#include "worker_runtime/c/handles.h"

using cadre::Status;
using cadre::c::Guarded;
using cadre::c::NotNull;
using cadre::c::TimeoutOf;

cadre_status cadre_work_wait(cadre_work* work, int64_t timeout_ms) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(work, "work"));
    ASSIGN_OR_RETURN(const auto timeout, TimeoutOf(timeout_ms));
    return work->work->Wait(timeout);
  });
}

cadre_status cadre_work_wait_or_abort(cadre_work* work, cadre_communicator* communicator,
                                      int64_t timeout_ms) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(NotNull(work, "work"));
    RETURN_IF_ERROR(NotNull(communicator, "communicator"));
    ASSIGN_OR_RETURN(const auto timeout, TimeoutOf(timeout_ms));
    return cadre::WaitOrAbort(*communicator->communicator, work->work, timeout);
  });
}

int cadre_work_done(const cadre_work* work) {
  if (Guarded([&] { return NotNull(work, "work"); }) != CADRE_OK) return -1;
  return work->work->done() ? 1 : 0;
}

void cadre_work_free(cadre_work* work) { delete work; }
