// The part of Spawn() (include/cadre/spawn.h) of the processes that it starts.
#ifndef CADRE_WORKER_RUNTIME_LAUNCHED_SPAWN_CHILD_H_
#define CADRE_WORKER_RUNTIME_LAUNCHED_SPAWN_CHILD_H_

#include <memory>

#include "base/scoped_fd.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/worker.h"
#include "worker_runtime/environment/variables.h"
#include "worker_runtime/launched/spawn_messages.h"

namespace cadre::launched {

// Whether Spawn() started this process.
bool IsSpawned(const environment::GetVariable& get);

class SpawnChild {
 public:
  // Reads the assignment, for which it waits 10 s at most; once in a process. FAILED_PRECONDITION:
  // not IsSpawned. UNAVAILABLE: the caller is gone, or says nothing.
  static Result<SpawnChild> Make(const environment::GetVariable& get);

  const Assignment& assignment() const { return assignment_; }
  // The store is the caller's; connects with its first call. All ranks are on this machine.
  std::unique_ptr<Worker> MakeWorker() const;
  // Tells the caller what came of this rank's part.
  void Report(const Status& status) const;

 private:
  SpawnChild(ScopedFd socket, Assignment assignment);

  ScopedFd socket_;
  Assignment assignment_;
};

}  // namespace cadre::launched

#endif  // CADRE_WORKER_RUNTIME_LAUNCHED_SPAWN_CHILD_H_
