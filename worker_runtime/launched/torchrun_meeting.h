// torchrun's ranks meet through the store that torchrun serves them: rank 0 says there where its
// own is.
#ifndef CADRE_WORKER_RUNTIME_LAUNCHED_TORCHRUN_MEETING_H_
#define CADRE_WORKER_RUNTIME_LAUNCHED_TORCHRUN_MEETING_H_

#include <memory>

#include "absl/time/time.h"
#include "cadre/result.h"
#include "worker_runtime/environment/launch.h"
#include "worker_runtime/environment/secret.h"
#include "worker_runtime/launched/meeting_place.h"

namespace cadre::launched {

// torchrun's store is there before its workers are, so one that does not answer is soon given up.
inline constexpr absl::Duration kTorchrunPatience = absl::Seconds(8);

// FAILED_PRECONDITION: several nodes, and no secret that they could share; says what to do. Calls
// of the meeting place end with UNAVAILABLE when torchrun's store does not answer as one of PyTorch
// 2.1 or newer for kTorchrunPatience.
Result<std::unique_ptr<MeetingPlace>> MeetThroughTorchrun(
    const environment::ThroughTorchrun& through, const environment::Secret& secret, bool one_node);

}  // namespace cadre::launched

#endif  // CADRE_WORKER_RUNTIME_LAUNCHED_TORCHRUN_MEETING_H_
