// Starts the ranks of one machine from within the program, without any launcher.
//
//   int main() {
//     const cadre::Status status = cadre::Spawn(4, [](cadre::World& world) -> cadre::Status {
//       return Train(*world.worker, *world.communicator);
//     });
//     if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
//     return status.ok() ? 0 : 1;
//   }
#ifndef CADRE_SPAWN_H_
#define CADRE_SPAWN_H_

#include <chrono>
#include <functional>

#include "cadre/communicator.h"
#include "cadre/connect.h"
#include "cadre/status.h"

namespace cadre {

inline constexpr int kMaxSpawnedRanks = 256;

struct SpawnOptions {
  // Of World::communicator.
  CommunicatorOptions communicator;
  // What the others get between SIGTERM and SIGKILL when one has failed.
  std::chrono::nanoseconds grace = std::chrono::seconds(5);
};

// Starts this program `ranks` times anew, with the same arguments and environment, and waits until
// all have ended. Such a process runs main() until it comes to the same call of Spawn(): the n-th
// call of the process that started it, where earlier ones return what they returned there. It then
// connects to the others, runs `body` and exits, with status 0 if `body` returned OK: its Spawn()
// never returns. So what stands before the call is done by every process, once each, and must lead
// there; what stands behind it is done by the caller alone. `body` is never run by the caller.
//
// The first rank that fails ends the others. All end with the caller, even when that is killed;
// Ctrl-C reaches all. The calling thread must live until this returns. There is no launcher:
// nothing is restarted, no logs are kept, and output goes where the caller's goes. One call at a
// time.
//
// OK: every rank returned OK. Else of the first that failed, beginning with "rank R (process P) ":
//   the code and message that its `body`, or connecting, came to
//   INTERNAL             it ended by a signal, or exited before it came to the call or within
//   `body`
// Or, without a rank:
//   INVALID_ARGUMENT     `ranks` is not from 1 to kMaxSpawnedRanks; no body
//   FAILED_PRECONDITION  called by a rank, whoever started it, or while another call runs
//   RESOURCE_EXHAUSTED   no more processes or descriptors; the 257th call of this process
//   UNAVAILABLE          loopback cannot be used; /proc is not there
Status Spawn(int ranks, const std::function<Status(World& world)>& body,
             const SpawnOptions& options = {});

}  // namespace cadre

#endif  // CADRE_SPAWN_H_
