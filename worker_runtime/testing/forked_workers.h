// The workers of one world as processes of their own, with a store in memory that they share. For
// tests and measurements of what happens between processes.
#ifndef CADRE_WORKER_RUNTIME_TESTING_FORKED_WORKERS_H_
#define CADRE_WORKER_RUNTIME_TESTING_FORKED_WORKERS_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <vector>

#include "cadre/worker.h"

namespace cadre::testing {

struct SharedStore;

// One thread. Fork before the first thread of the process is started: a child has only the one that
// forked.
class ForkedWorkers {
 public:
  // Ranks are split evenly over `nodes`.
  explicit ForkedWorkers(int world_size, int nodes = 1);
  // Kills what still runs.
  ~ForkedWorkers();
  ForkedWorkers(const ForkedWorkers&) = delete;
  ForkedWorkers& operator=(const ForkedWorkers&) = delete;

  // Starts every rank; a child ends with what `body` returns as its exit status.
  void Start(const std::function<int(Worker&)>& body);
  // Starts a rank anew, whose process has been waited for.
  void Replace(int rank, const std::function<int(Worker&)>& body);

  pid_t pid(int rank) const { return pids_[rank]; }
  void Signal(int rank, int signal) const;
  // Waits for the rank to end: its exit status, or 128 and the signal that killed it.
  int Wait(int rank);
  // 0: every rank ended with 0. Else the first other status.
  int WaitForAll();

  // The store as the parent sees it; its rank is -1.
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
