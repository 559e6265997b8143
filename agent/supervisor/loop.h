// The supervisor's one loop: epoll, what is ready, act, flush. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_LOOP_H_
#define CADRE_AGENT_SUPERVISOR_LOOP_H_

#include "absl/status/status.h"
#include "agent/supervisor/state.h"

namespace cadre::supervisor {

// Runs until the agent is gone; no worker is left when it returns OK. SIGCHLD is blocked before.
absl::Status RunLoop(State& state);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_LOOP_H_
