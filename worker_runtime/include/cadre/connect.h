// The one call that most programs need: returns this process's rank and a communicator with all
// other ranks.
//
//   CADRE_ASSIGN_OR_RETURN(cadre::World world, cadre::Connect());
//   std::printf("rank %d of %d\n", world.worker->rank(), world.worker->world_size());
//   world.communicator->AllReduce(buffer, cadre::ReduceOp::kSum)->Wait(std::chrono::minutes(1));
#ifndef CADRE_CONNECT_H_
#define CADRE_CONNECT_H_

#include <memory>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/span.h"
#include "cadre/worker.h"

namespace cadre {

// Neither is null. The communicator is destroyed first.
struct World {
  std::unique_ptr<Worker> worker;
  std::unique_ptr<Communicator> communicator;
};

// Calls Worker::Connect(), then ConnectCommunicator(), and returns their errors. Waits until all
// ranks of the world have called it.
Result<World> Connect(const CommunicatorOptions& options = {});

// Connects CPU memory of all ranks of the world: by shared memory on one node; on several nodes by
// shared memory within each, and sockets between one rank of each. CADRE_CPU_BACKEND=shared_memory
// or sockets in the environment selects that backend instead; any other value is INVALID_ARGUMENT.
// All ranks call it the same number of times with the same name, and wait for each other.
// DEADLINE_EXCEEDED or UNAVAILABLE names a rank that did not connect; ABORTED: the generation is
// over; RESOURCE_EXHAUSTED: a limit of this process is too low, and the message names the limit to
// raise. `worker` must outlive the call, not the communicator.
Result<std::unique_ptr<Communicator>> ConnectCommunicator(Worker& worker,
                                                          const CommunicatorOptions& options);

// Likewise for these ranks of the world only, numbered in the order given, also in errors of its
// operations. Exactly these ranks call it, with the same ranks and name. INVALID_ARGUMENT: this
// rank is not among them, or a rank does not exist or is given twice.
Result<std::unique_ptr<Communicator>> ConnectGroup(Worker& worker, Span<const int> ranks,
                                                   const CommunicatorOptions& options);

}  // namespace cadre

#endif  // CADRE_CONNECT_H_
