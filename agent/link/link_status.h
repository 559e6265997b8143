// What gRPC reports about a connection, in words for the person who started the agent or asks the
// server something. Pure.
#ifndef CADRE_AGENT_LINK_LINK_STATUS_H_
#define CADRE_AGENT_LINK_LINK_STATUS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace cadre::agent {

// INVALID_ARGUMENT unless it is host:port with a port in 1..65535.
absl::Status CheckEndpoint(const std::string& endpoint);

// How a stream, or a call, ended. `opened`: one of our servers had answered before. Never OK: a
// stream that the server ends properly is UNAVAILABLE too, as far as the agent is concerned.
absl::Status DescribeEnd(const std::string& endpoint, const absl::Status& status, bool opened);

// Whether a machine answered that nobody listens there, `status` being how the attempt ended.
bool IsRefused(const absl::Status& status);

// NOT_FOUND: nobody listens any more where a launcher served that kept all it knew to itself.
absl::Status LauncherIsGone(const std::string& endpoint);

// Why none of the servers could be reached: one status for those of each.
absl::Status NoneReached(const std::vector<absl::Status>& failed);

// Whether trying again is of no use.
bool IsFinal(const absl::Status& status);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LINK_LINK_STATUS_H_
