// Groups that stand by. Their process has one end of a socket, whose number is in CADRE_STANDS_BY.
// It writes a byte once it waits, and then reads its assignment: NAME=value entries, each with a
// NUL behind it as in /proc/PID/environ, and one NUL more. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_STANDBY_H_
#define CADRE_AGENT_SUPERVISOR_STANDBY_H_

#include <string>
#include <vector>

#include "agent/supervisor/state.h"

namespace cadre::supervisor {

// The supervisor's end and the process's. Not ok(): errno says why.
struct StandbySocket {
  ScopedFd ours;
  ScopedFd theirs;
};
StandbySocket MakeStandbySocket();

// Gives the assignment to a process that waits for one. nullptr: there is none.
Group* AssignStandby(State& state, const std::vector<std::string>& assignment);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_STANDBY_H_
