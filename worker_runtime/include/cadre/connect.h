// The one call of an ordinary program: who am I, and a communicator with all others.
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

// Neither is null. The communicator goes first.
struct World {
  std::unique_ptr<Worker> worker;
  std::unique_ptr<Communicator> communicator;
};

// Worker::Connect(), then ConnectCommunicator(); errors as theirs. Waits until all ranks of the
// world have called it.
Result<World> Connect(const CommunicatorOptions& options = {});

// Between CPU memory of all ranks of the world: shared memory on one node; on several, shared
// memory within each and sockets between one rank of each. CADRE_CPU_BACKEND=shared_memory or
// sockets in the environment asks for that one instead; INVALID_ARGUMENT: it says something else.
// All ranks call it the same number of times with the same name, and wait for each other:
// DEADLINE_EXCEEDED or UNAVAILABLE names a rank that did not come; ABORTED: the generation is over;
// RESOURCE_EXHAUSTED: this process has no room for what it takes, and what to raise. `worker` must
// outlive the call, not the communicator.
Result<std::unique_ptr<Communicator>> ConnectCommunicator(Worker& worker,
                                                          const CommunicatorOptions& options);

// Likewise between these ranks of the world only, which are counted in the order given: errors of
// its operations count so too. All of them, and nobody else, call it with the same ranks and name.
// INVALID_ARGUMENT: this rank is not among them, or a rank is none or comes twice.
Result<std::unique_ptr<Communicator>> ConnectGroup(Worker& worker, Span<const int> ranks,
                                                   const CommunicatorOptions& options);

}  // namespace cadre

#endif  // CADRE_CONNECT_H_
