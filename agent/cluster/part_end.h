// What the server is told of a part's launcher that has ended. Pure.
#ifndef CADRE_AGENT_CLUSTER_PART_END_H_
#define CADRE_AGENT_CLUSTER_PART_END_H_

#include "absl/status/status.h"
#include "agent/supervisor/frames.h"
#include "proto/cluster.pb.h"

namespace cadre::agent {

// In one line, and whose doing it was: a launcher that says "usage" or "bad spec" would say so on
// every node, one that is to try again later may do so on the same one. Without the part's id.
v1::PartReport EndOfPart(const supervisor::ExitedFrame& exited);

// Of a launcher that could not be started: a full disk, too few descriptors or processes, a file
// system or a user database that does not answer pass.
v1::PartBlame BlameForUnstarted(absl::StatusCode code);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_PART_END_H_
