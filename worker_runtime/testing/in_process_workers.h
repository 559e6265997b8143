// The workers of one world inside one process, for tests of what is built on a Worker. Their store
// is in memory and has real waits, barriers and generations.
#ifndef CADRE_WORKER_RUNTIME_TESTING_IN_PROCESS_WORKERS_H_
#define CADRE_WORKER_RUNTIME_TESTING_IN_PROCESS_WORKERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cadre/worker.h"

namespace cadre::testing {

class InProcessStore;

// Thread safe. The workers live as long as this object.
class InProcessWorkers {
 public:
  // The ranks are split evenly over `nodes`; the last node gets the remainder.
  explicit InProcessWorkers(int world_size, int nodes = 1, uint64_t generation = 1);
  ~InProcessWorkers();

  int world_size() const { return static_cast<int>(workers_.size()); }
  Worker& worker(int rank) { return *workers_[rank]; }

  // Begins the next generation: pending waits end, and every call of these workers fails with
  // ABORTED.
  void EndGeneration();

  // Runs `body` as every rank, one thread each; returns when all have returned.
  void Run(const std::function<void(Worker&)>& body);

 private:
  const uint64_t generation_;
  std::unique_ptr<InProcessStore> store_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace cadre::testing

#endif  // CADRE_WORKER_RUNTIME_TESTING_IN_PROCESS_WORKERS_H_
