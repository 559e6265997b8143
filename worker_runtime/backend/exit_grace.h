// How long the other ranks wait for the process of a rank that aborted to end, before their own
// calls fail.
#ifndef CADRE_WORKER_RUNTIME_BACKEND_EXIT_GRACE_H_
#define CADRE_WORKER_RUNTIME_BACKEND_EXIT_GRACE_H_

#include "absl/time/time.h"

namespace cadre::backend {

// A rank usually aborts while it exits after an error of its own, and the launcher takes the worker
// that exits first for the cause. Unloading libtorch alone takes a while. But if a rank has died
// without aborting, that rank is the cause, and a rank that aborts is another victim: then there is
// no wait.
inline constexpr absl::Duration kExitGrace = absl::Milliseconds(500);
// If its process is visible, the wait stops when that process ends.
inline constexpr absl::Duration kVisibleExitGrace = absl::Seconds(2);

}  // namespace cadre::backend

#endif  // CADRE_WORKER_RUNTIME_BACKEND_EXIT_GRACE_H_
