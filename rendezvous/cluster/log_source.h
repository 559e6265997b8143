// Where a worker's log is. Pure.
#ifndef CADRE_RENDEZVOUS_CLUSTER_LOG_SOURCE_H_
#define CADRE_RENDEZVOUS_CLUSTER_LOG_SOURCE_H_

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/cluster/agents.h"
#include "rendezvous/state/state.h"
#include "rendezvous/step/ids.h"

namespace cadre::cluster {

// How a worker's log is asked for: on which stream, and the message but for call, stream, place and
// limit.
struct LogSource {
  StreamId stream;
  v1::ReadLog read;
  // The job is over, and nothing of it is left on the node.
  bool ended = false;
};

// FAILED_PRECONDITION: no such job, run or rank, or the job was not submitted. UNAVAILABLE: its
// node has no agent, or one that is away.
absl::StatusOr<LogSource> FindLog(const v1::ReadLogRequest& request, const state::State& state,
                                  const Agents& agents);

}  // namespace cadre::cluster

#endif  // CADRE_RENDEZVOUS_CLUSTER_LOG_SOURCE_H_
