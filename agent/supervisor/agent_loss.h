// Kills the workers when their agent dies or, if the agent has asked for it, lets them outlive it
// until another agent adopts them: that one connects to a socket in the dead agent's directory,
// which only this user can do, and sends the token. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_AGENT_LOSS_H_
#define CADRE_AGENT_SUPERVISOR_AGENT_LOSS_H_

#include "agent/supervisor/frames.h"
#include "agent/supervisor/groups.h"
#include "base/time.h"

namespace cadre::supervisor {

// If it cannot listen, workers die with the agent, and a line reports it.
void AllowAdoption(State& state, const KeepFrame& keep);

// The new connection becomes the candidate. It replaces one that has not sent the token.
void AcceptCandidate(State& state);
// Reads from the candidate; one that sends a wrong token, or has closed, is dropped.
void HandleCandidate(State& state);

// Called when the agent is gone. Returns true if its workers are kept.
bool OnAgentLost(State& state, MonoTime now);
// Whether there is no agent, and no group that another one could still adopt.
bool IsAbandoned(const State& state, MonoTime now);
void StopListening(State& state);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_AGENT_LOSS_H_
