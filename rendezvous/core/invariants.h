// What is always true of the core between two steps.
#ifndef CADRE_RENDEZVOUS_CORE_INVARIANTS_H_
#define CADRE_RENDEZVOUS_CORE_INVARIANTS_H_

#include "absl/status/status.h"
#include "rendezvous/core/core_impl.h"

namespace cadre {

// OK, or INTERNAL naming the job and what does not hold.
absl::Status CheckCore(const Core::Impl& core);

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_CORE_INVARIANTS_H_
