// A worker that a launcher other than Cadre's started (mpirun, torchrun, srun, a script), without
// an agent on its node. Rank 0 serves the store from within its process; the others find it at a
// meeting place (meeting_place.h).
//
// Cadre then neither restarts workers, nor detects hangs, nor keeps logs.
#ifndef CADRE_WORKER_RUNTIME_LAUNCHED_LAUNCHED_WORKER_H_
#define CADRE_WORKER_RUNTIME_LAUNCHED_LAUNCHED_WORKER_H_

#include <chrono>
#include <memory>

#include "cadre/result.h"
#include "cadre/worker.h"
#include "worker_runtime/environment/read_launch.h"
#include "worker_runtime/environment/worker_environment.h"

namespace cadre::launched {

struct Options {
  // Limits the wait for all ranks to connect, including what their programs do before that.
  std::chrono::nanoseconds connect_timeout = std::chrono::minutes(5);
  // After this time a line on standard error says, once, for which ranks this one waits.
  std::chrono::nanoseconds first_notice_after = std::chrono::seconds(10);
  // How long rank 0, whose exit ends the store, waits for the others to end.
  std::chrono::nanoseconds others_exit_timeout = std::chrono::seconds(5);
};

// Like Worker::Connect; returns when all ranks have connected. `get` is used to read
// CADRE_SECRET_FILE. DEADLINE_EXCEEDED names the missing ranks. Several workers may exist in one
// process.
Result<std::unique_ptr<Worker>> Connect(const environment::Launch& launch,
                                        const environment::GetVariable& get,
                                        const Options& options = {});

}  // namespace cadre::launched

#endif  // CADRE_WORKER_RUNTIME_LAUNCHED_LAUNCHED_WORKER_H_
