// A worker that another launcher than Cadre's started (mpirun, torchrun, srun, a script), without
// an agent on its node. Rank 0 serves the store from within its process; the others find it at a
// meeting place (meeting_place.h).
//
// There is nobody of ours to start a worker again, to see that one hangs or to keep its logs.
#ifndef CADRE_WORKER_RUNTIME_LAUNCHED_LAUNCHED_WORKER_H_
#define CADRE_WORKER_RUNTIME_LAUNCHED_LAUNCHED_WORKER_H_

#include <chrono>
#include <memory>

#include "cadre/result.h"
#include "cadre/worker.h"
#include "worker_runtime/environment/launch.h"
#include "worker_runtime/environment/variables.h"

namespace cadre::launched {

struct Options {
  // For all ranks to come, however long their programs take until then.
  std::chrono::nanoseconds connect_timeout = std::chrono::minutes(5);
  // Then a line on standard error says for whom this rank waits, once.
  std::chrono::nanoseconds silence = std::chrono::seconds(10);
  // For the others to end before rank 0 takes the store with it.
  std::chrono::nanoseconds farewell_timeout = std::chrono::seconds(5);
};

// As Worker::Connect; returns when all ranks are there. `get` is asked for CADRE_SECRET_FILE.
// DEADLINE_EXCEEDED naming who is missing. Several workers may live in one process.
Result<std::unique_ptr<Worker>> Connect(const environment::Launch& launch,
                                        const environment::GetVariable& get,
                                        const Options& options = {});

}  // namespace cadre::launched

#endif  // CADRE_WORKER_RUNTIME_LAUNCHED_LAUNCHED_WORKER_H_
