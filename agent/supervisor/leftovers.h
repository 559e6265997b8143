// Kills what a supervisor that died has left. Looks at nobody's children: this program may have
// children of its own. What is to go is in the supervisor's cgroup, in a session of one of its
// groups, or carries its marker. Blocks; one thread.
#ifndef CADRE_AGENT_SUPERVISOR_LEFTOVERS_H_
#define CADRE_AGENT_SUPERVISOR_LEFTOVERS_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/supervisor/frames.h"

namespace cadre::supervisor {

// What the supervisor has said of its groups.
struct Leftovers {
  std::string supervisor_id;
  std::string cgroup;
  std::map<pid_t, uint64_t> sessions;  // of processes that were started and have not exited: groups
  std::set<pid_t> killed;              // so far, and not reaped

  void Note(const Frame& frame);
};

// Until there is nothing, for `limit` at most. Reaps those that came to us as subreaper. Returns
// what SIGKILL has not ended by then; what is in no session of a group counts as group 0's.
std::vector<RemainsFrame> KillLeftovers(Leftovers& leftovers, absl::Duration limit);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_LEFTOVERS_H_
