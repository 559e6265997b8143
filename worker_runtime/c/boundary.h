// Where C++ ends: statuses become numbers and a message, and no exception goes further.
#ifndef CADRE_WORKER_RUNTIME_C_BOUNDARY_H_
#define CADRE_WORKER_RUNTIME_C_BOUNDARY_H_

#include "cadre.h"
#include "cadre/status.h"

namespace cadre::c {

// The status's number; the message of one that is not OK is this thread's last error.
cadre_status Returned(const Status& status) noexcept;

// As above, for the exception that is being handled: RESOURCE_EXHAUSTED where there was no memory,
// else INTERNAL with what it says.
cadre_status ReturnedForException() noexcept;

// What `body`, which returns a Status, comes to.
template <typename Body>
cadre_status Guarded(const Body& body) noexcept {
  try {
    return Returned(body());
  } catch (...) {
    return ReturnedForException();
  }
}

}  // namespace cadre::c

#endif  // CADRE_WORKER_RUNTIME_C_BOUNDARY_H_
