// Carries out a StartFrame. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_START_H_
#define CADRE_AGENT_SUPERVISOR_START_H_

#include "agent/supervisor/frames.h"
#include "agent/supervisor/state.h"

namespace cadre {

// Starts the worker, or says with an ExitedFrame which step failed.
void StartWorker(State& state, const StartFrame& start);

}  // namespace cadre

#endif  // CADRE_AGENT_SUPERVISOR_START_H_
