// Whether a node's version of Cadre may join. Pure.
#ifndef CADRE_RENDEZVOUS_CORE_VERSION_CHECK_H_
#define CADRE_RENDEZVOUS_CORE_VERSION_CHECK_H_

#include "absl/status/status.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/state/state.h"

namespace cadre {

// Of a Join. UNAVAILABLE: the node's version and the server's do not work together, or the job
// needs what the node's cannot do. So workers that the node would have taken over stay as they are.
absl::Status CheckVersion(const state::State& state, const v1::NodeMessage& message);

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_CORE_VERSION_CHECK_H_
