// Removes what a killed agent leaves: its directory (local_directory.h) and, behind a link in it,
// the memory of its workers' checkpoints. It is removed by the user's next agent, or by the
// supervisor, which briefly outlives its agent.
#ifndef CADRE_AGENT_LOCAL_AGENT_CLEANUP_H_
#define CADRE_AGENT_LOCAL_AGENT_CLEANUP_H_

#include <string>

#include "absl/time/time.h"

namespace cadre::agent {

// The socket at which the agent with this directory listens.
std::string AgentSocketPath(const std::string& directory);

// The prefix of this user's directories in shared memory, for example "/dev/shm/cadre-1000-".
std::string CheckpointMemoryPrefix();

// Whether a process listens there. Needed because an agent in another PID namespace has no visible
// pid.
bool IsListenedOn(const std::string& path);

// The memory that the directory's link names; empty if it is not this user's.
std::string LinkedMemory(const std::string& directory);

// Removes the directory, and the memory that its link names.
void RemoveAgentDirectory(const std::string& directory);

// Does the same once no process listens in it any more; if that takes longer than `limit`, it
// removes nothing. (An exiting process closes its descriptors one by one.)
void RemoveOnceAbandoned(const std::string& directory, absl::Duration limit);

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LOCAL_AGENT_CLEANUP_H_
