// How a rank and the one that keeps its states find each other, through the store.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_PARTNER_MEETING_H_
#define CADRE_WORKER_RUNTIME_MEMORY_PARTNER_MEETING_H_

#include <cstdint>
#include <functional>

#include "base/time.h"
#include "cadre/result.h"
#include "cadre/worker.h"
#include "worker_runtime/memory/neighbours.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::memory {

// For a wait that may be given up: `check` is asked every second, and its error ends the wait.
struct Waiting {
  MonoTime deadline;
  std::function<Status()> check;
};

// Every rank of every node calls it.
Result<Neighbours> FindNeighbours(Worker& worker, const Waiting& waiting);

// Connects `sender` with `keeper`; both call it with the same `opening`, which is another one each
// time.
Result<wire::Connection> MeetPartner(Worker& worker, int sender, int keeper, int64_t opening,
                                     const Waiting& waiting);

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_PARTNER_MEETING_H_
