// Carries out a StartFrame. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_START_H_
#define CADRE_AGENT_SUPERVISOR_START_H_

#include "agent/supervisor/frames.h"
#include "agent/supervisor/state.h"
#include "base/time.h"

namespace cadre::supervisor {

// Starts the group's process once its files are there, gives the place to one that stands by, or
// says with an ExitedFrame which step failed.
void StartGroup(State& state, const StartFrame& start);

// Goes on with those whose files are there, or have taken too long.
void AdvanceStarts(State& state, MonoTime now);
MonoTime NextStartDeadline(const State& state);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_START_H_
