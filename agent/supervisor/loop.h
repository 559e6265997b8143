// The supervisor's event loop (epoll): executes the agent's frames, passes on workers' output, and
// calls what acts on the groups. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_LOOP_H_
#define CADRE_AGENT_SUPERVISOR_LOOP_H_

#include "absl/status/status.h"
#include "agent/supervisor/groups.h"

namespace cadre::supervisor {

// Runs until the agent is gone; no worker is left when it returns OK. SIGCHLD must be blocked.
absl::Status RunLoop(State& state);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_LOOP_H_
