// Checks whether a node may join the job that its Join names: by its caller and by its version.
// What else Core::OnJoin() checks: whether the Join is valid (Jobs::CheckJoin(),
// rendezvous/job/jobs.h), and whether a launcher has an allocation of the job
// (cluster::CheckLauncher(), rendezvous/cluster/launcher_check.h). Pure.
#ifndef CADRE_RENDEZVOUS_CORE_JOIN_CHECKS_H_
#define CADRE_RENDEZVOUS_CORE_JOIN_CHECKS_H_

#include "absl/status/status.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/state/state.h"

namespace cadre {

// Checks whether the caller that opened the node's stream may join the job. Errors:
//   PERMISSION_DENIED  another user's job has that name, or has ended and keeps it
//   UNAUTHENTICATED    the caller's token has expired, and the node is not a member that reconnects
absl::Status CheckCaller(const state::State& state, const v1::NodeMessage& message);

// Checks whether a node of this version of Cadre may join. UNAVAILABLE: the node's version and the
// server's do not work together. With that code, workers that the node would have taken over stay
// as they are.
absl::Status CheckVersion(const v1::NodeMessage& message);

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_CORE_JOIN_CHECKS_H_
