// The workers of one world as forked processes, with a store in shared memory. Tests and
// measurements use it where the interplay of processes matters.
#ifndef CADRE_WORKER_RUNTIME_TESTING_FORKED_WORKERS_H_
#define CADRE_WORKER_RUNTIME_TESTING_FORKED_WORKERS_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <vector>

#include "cadre/worker.h"

namespace cadre::testing {

struct SharedStore;

// Used by one thread. Fork before the process starts its first thread: a child has only the thread
// that called fork.
class ForkedWorkers {
 public:
  // The ranks are split evenly over `nodes`.
  explicit ForkedWorkers(int world_size, int nodes = 1);
  // Kills the children that still run.
  ~ForkedWorkers();
  ForkedWorkers(const ForkedWorkers&) = delete;
  ForkedWorkers& operator=(const ForkedWorkers&) = delete;

  // Starts every rank; a child exits with the status that `body` returns.
  void Start(const std::function<int(Worker&)>& body);
  // Starts a rank again after its process has been waited for.
  void Replace(int rank, const std::function<int(Worker&)>& body);

  pid_t pid(int rank) const { return pids_[rank]; }
  void Signal(int rank, int signal) const;
  // Waits for the rank to end; returns its exit status, or 128 plus the signal that killed it.
  int Wait(int rank);
  // Returns 0 if every rank ended with 0, else the first other status.
  int WaitForAll();

  // A worker with rank -1 through which the parent uses the store.
  Worker& observer() { return *observer_; }

 private:
  pid_t Fork(int rank, const std::function<int(Worker&)>& body);

  const int world_size_;
  const int nodes_;
  SharedStore* const store_;
  std::vector<pid_t> pids_;
  std::unique_ptr<Worker> observer_;
};

}  // namespace cadre::testing

#endif  // CADRE_WORKER_RUNTIME_TESTING_FORKED_WORKERS_H_
