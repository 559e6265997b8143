// A C handle for a worker that a test owns.
#ifndef CADRE_WORKER_RUNTIME_C_BORROWED_WORKER_H_
#define CADRE_WORKER_RUNTIME_C_BORROWED_WORKER_H_

#include <memory>

#include "cadre/worker.h"
#include "worker_runtime/c/handles.h"
#include "worker_runtime/store/group_worker.h"

namespace cadre::c {

// `worker` must outlive it. A handle owns its worker, so it holds a GroupWorker of all ranks.
inline cadre_worker Borrowed(Worker& worker) {
  return {std::make_unique<store::GroupWorker>(&worker, "c", worker.place())};
}

}  // namespace cadre::c

#endif  // CADRE_WORKER_RUNTIME_C_BORROWED_WORKER_H_
