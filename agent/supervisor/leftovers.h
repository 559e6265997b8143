// Kills what a supervisor that died has left. Looks at nobody's children: this program may have
// children of its own. What is to go is in the supervisor's cgroup, in a session of one of its
// groups, or carries its marker. Blocks; one thread.
#ifndef CADRE_AGENT_SUPERVISOR_LEFTOVERS_H_
#define CADRE_AGENT_SUPERVISOR_LEFTOVERS_H_

#include <sys/types.h>

#include <set>
#include <string>

#include "agent/supervisor/frames.h"

namespace cadre::supervisor {

// What the supervisor has said of its groups.
struct Leftovers {
  std::string supervisor_id;
  std::string cgroup;
  std::set<pid_t> sessions;  // of processes that were started and have not exited

  void Note(const Frame& frame);
};

// Until there is nothing, for one second at most. Reaps those that came to us as subreaper.
void KillLeftovers(const Leftovers& leftovers);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_LEFTOVERS_H_
