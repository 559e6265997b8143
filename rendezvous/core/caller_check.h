// Whether who opened a node's stream may join its job. Pure.
#ifndef CADRE_RENDEZVOUS_CORE_CALLER_CHECK_H_
#define CADRE_RENDEZVOUS_CORE_CALLER_CHECK_H_

#include "absl/status/status.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/state/state.h"

namespace cadre {

// Of a Join.
//   PERMISSION_DENIED  another user's job has that name, or has ended and keeps it
//   UNAUTHENTICATED    the caller's token has ended, and this is no node that comes back to the job
absl::Status CheckCaller(const state::State& state, const v1::NodeMessage& message);

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_CORE_CALLER_CHECK_H_
