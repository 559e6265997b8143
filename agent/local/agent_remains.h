// What an agent leaves that is killed: its directory (local_directory.h) and, behind a link in it,
// the memory of its workers' checkpoints. The next agent of the user removes it, or the supervisor,
// which outlives its agent for a moment.
#ifndef CADRE_AGENT_LOCAL_AGENT_REMAINS_H_
#define CADRE_AGENT_LOCAL_AGENT_REMAINS_H_

#include <string>

#include "absl/time/time.h"

namespace cadre::agent {

// Where the agent listens whose directory that is.
std::string AgentSocketPath(const std::string& directory);

// What the names of this user's folders of memory begin with: "/dev/shm/cadre-1000-".
std::string CheckpointMemoryPrefix();

// Whether somebody listens there: an agent of another PID namespace has a pid that is not seen.
bool IsListenedOn(const std::string& path);

// The memory that its link names; empty: none of this user's.
std::string LinkedMemory(const std::string& directory);

// With the memory that its link names.
void RemoveAgentDirectory(const std::string& directory);

// Likewise once nobody listens in it any more: within `limit`, or not at all. A process that ends
// closes what it has open one by one.
void RemoveOnceAbandoned(const std::string& directory, absl::Duration limit);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LOCAL_AGENT_REMAINS_H_
