// Lets workers outlive an agent that dies, where it asked for that, until another one takes them
// over: it connects to a socket in the agent's directory, which only this user can. Supervisor's
// thread only.
#ifndef CADRE_AGENT_SUPERVISOR_KEEP_H_
#define CADRE_AGENT_SUPERVISOR_KEEP_H_

#include "agent/supervisor/frames.h"
#include "agent/supervisor/state.h"
#include "base/time.h"

namespace cadre::supervisor {

// Where it cannot listen, workers die with the agent, and a line says so.
void KeepWorkers(State& state, const KeepFrame& keep);

// Whoever connects becomes the candidate, in the place of one that has not shown the token.
void AcceptCandidate(State& state);
// Reads what it says; a stranger, or one that has gone, is let go.
void HandleCandidate(State& state);

// The agent is gone. True: its workers go on.
bool OutliveAgent(State& state, MonoTime now);
// There is no agent, and nothing that another one could take over in time.
bool IsAbandoned(const State& state, MonoTime now);
void StopListening(State& state);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_KEEP_H_
