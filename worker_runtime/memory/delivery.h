// Brings ranks the states that lie on other nodes.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_DELIVERY_H_
#define CADRE_WORKER_RUNTIME_MEMORY_DELIVERY_H_

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cadre/communicator.h"
#include "cadre/result.h"
#include "cadre/worker.h"
#include "worker_runtime/memory/agreement.h"
#include "worker_runtime/memory/files/memory_slots.h"

namespace cadre::memory {

// Collective: what all nodes hold of all ranks, and what that comes to.
Result<std::optional<Agreement>> AgreeWithAll(Communicator& communicator, const WorkerPlace& place,
                                              const std::string& directory,
                                              std::chrono::nanoseconds timeout);

// Collective: sends what this rank is to send, and receives its own state into `own` where it lies
// elsewhere. On an error the others fail too.
Status Deliver(Communicator& communicator, const Agreement& agreement, const std::string& directory,
               MemorySlots& own, std::chrono::nanoseconds timeout);

// Where this node holds that rank's state of the agreement; empty: nowhere.
std::string PathOf(const Agreement& agreement, int rank, const std::string& directory);

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_DELIVERY_H_
