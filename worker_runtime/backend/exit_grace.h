// How long the other ranks wait for the process of a rank that aborted to end, before their calls
// fail for it.
#ifndef CADRE_WORKER_RUNTIME_BACKEND_EXIT_GRACE_H_
#define CADRE_WORKER_RUNTIME_BACKEND_EXIT_GRACE_H_

#include "absl/time/time.h"

namespace cadre::backend {

// Mostly a rank aborts while it ends for an error of its own, and the worker that ends first is
// taken for the cause. Unloading libtorch alone takes a while. But where a rank has died without
// aborting, that is the cause, and a rank that aborts is one more victim: nobody waits then.
inline constexpr absl::Duration kExitGrace = absl::Milliseconds(500);
// Where its process can be seen, its end is enough to stop waiting.
inline constexpr absl::Duration kVisibleExitGrace = absl::Seconds(2);

}  // namespace cadre::backend

#endif  // CADRE_WORKER_RUNTIME_BACKEND_EXIT_GRACE_H_
