// Starts the ranks of one machine from within the program, without a launcher.
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
  // The options of World::communicator.
  CommunicatorOptions communicator;
  // How long the other ranks get between SIGTERM and SIGKILL when one has failed.
  std::chrono::nanoseconds grace = std::chrono::seconds(5);
};

// Starts this program `ranks` times, with the same arguments and environment, and waits until all
// have exited. Each process runs main() until it reaches the same call of Spawn(), the n-th one of
// the calling process; earlier calls return what they returned there. It then connects to the
// others, runs `body` and exits, with status 0 if `body` returned OK: Spawn() never returns in it.
// The code before the call is therefore run once by every process and must lead to the call; the
// code behind it is run only by the caller. `body` is never run by the caller.
//
// When a rank fails, the others are stopped. All ranks exit with the caller, even if it is killed;
// Ctrl-C reaches all of them. The calling thread must live until this returns. There is no
// launcher: nothing is restarted, no logs are kept, and ranks write to the caller's standard
// streams. Only one call may run at a time.
//
// OK: every rank returned OK. Otherwise the error of the first rank that failed, beginning with
// "rank R (process P) ":
//   the code and message that its `body`, or connecting, returned
//   INTERNAL             it was ended by a signal, or exited before the call or within `body`
// Or, without a rank:
//   INVALID_ARGUMENT     `ranks` is not from 1 to kMaxSpawnedRanks, or `body` is empty
//   FAILED_PRECONDITION  called by a rank, of Spawn() or any launcher, or while another call runs
//   RESOURCE_EXHAUSTED   no more processes or descriptors; the 257th call of this process
//   UNAVAILABLE          loopback cannot be used; /proc does not exist
Status Spawn(int ranks, const std::function<Status(World& world)>& body,
             const SpawnOptions& options = {});

}  // namespace cadre

#endif  // CADRE_SPAWN_H_
