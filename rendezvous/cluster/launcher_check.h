// Checks whether a launcher may join a job: one that the cluster started only as the allocation
// that it names, and any other only a job that was not submitted. The other checks of a Join are in
// rendezvous/core/join_checks.h. Pure.
#ifndef CADRE_RENDEZVOUS_CLUSTER_LAUNCHER_CHECK_H_
#define CADRE_RENDEZVOUS_CLUSTER_LAUNCHER_CHECK_H_

#include "absl/status/status.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/state/state.h"

namespace cadre::cluster {

// Checks the Join of a launcher. FAILED_PRECONDITION if it may neither take part in the job as the
// allocation that it names, nor learn how the job ended. A user's token opens streams without an
// allocation (service/permissions.h), a launcher's token only those of its own allocation, so a
// submitted job is visible only to its own launchers.
absl::Status CheckLauncher(const state::State& state, const v1::NodeMessage& message);

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_LAUNCHER_CHECK_H_
