// What the server is told of a part's launcher that has ended. Pure.
#ifndef CADRE_AGENT_CLUSTER_PART_END_H_
#define CADRE_AGENT_CLUSTER_PART_END_H_

#include "agent/supervisor/frames.h"
#include "proto/cluster.pb.h"

namespace cadre::agent {

// In one line, and whose doing it was: a launcher that says "usage" or "bad spec" would say so on
// every node, one that is to try again later may do so on the same one. Without the part's id.
v1::PartReport EndOfPart(const supervisor::ExitedFrame& exited);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CLUSTER_PART_END_H_
