// A group's process: made anew, or one that is there already. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_PROCESS_START_H_
#define CADRE_AGENT_SUPERVISOR_PROCESS_START_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "agent/supervisor/frames.h"
#include "agent/supervisor/output/plumbing.h"
#include "agent/supervisor/processes/spawn.h"
#include "agent/supervisor/state.h"

namespace cadre::supervisor {

// False: `group.end` says why there is no process.
bool StartProcess(State& state, uint64_t serial, const StartFrame& start, Plumbing& plumbing,
                  Group& group);

// The process is the group's from now on, and speaks through the plumbing.
void TakeProcess(State& state, uint64_t serial, const StartFrame& start, Plumbing& plumbing,
                 Spawned process, Group& group);

// What a start that failed at this step comes to.
ExitedFrame NotStarted(const std::string& step, int error);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_PROCESS_START_H_
