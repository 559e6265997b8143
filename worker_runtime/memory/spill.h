// Writes states from memory to a directory, now and then, behind the training.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_SPILL_H_
#define CADRE_WORKER_RUNTIME_MEMORY_SPILL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "base/time.h"
#include "cadre/status.h"
#include "cadre/worker.h"
#include "worker_runtime/memory/files/memory_slots.h"
#include "worker_runtime/memory/spill_directory.h"

namespace cadre::memory {

// All ranks must write the same steps, though their clocks differ: rank 0 says in the store which,
// two saves ahead. Whoever saves that one has trained with rank 0 in a step behind the one that
// rank 0 said it in. One thread at a time.
class Spill {
 public:
  // `rank` of `ranks` states, as SpillDirectory has them. `worker` must outlive it.
  Spill(Worker& worker, std::string directory, int rank, int ranks, std::chrono::nanoseconds every);
  // Waits for what is being written.
  ~Spill();
  Spill(const Spill&) = delete;
  Spill& operator=(const Spill&) = delete;

  const SpillDirectory& directory() const { return directory_; }

  // After the `count`-th commit of this generation: writes it, where that is its turn, from its
  // slot, which is reserved meanwhile. Does not wait.
  void Committed(int64_t count, const SavedStep& saved, MemorySlots& slots);
  // What the last write ended with, said once.
  Status TakeProblem();

 private:
  // Empty: it is not that one's turn.
  std::string TokenFor(int64_t count);
  void Schedule(int64_t count);

  Worker& worker_;
  const SpillDirectory directory_;
  const std::chrono::nanoseconds every_;
  MonoTime last_;
  bool has_begun_ = false;
  // Of the last two, each "COUNT TOKEN;".
  std::string schedule_;
  // Of rank 0: the last of them, before which there is no other.
  int64_t scheduled_ = 0;
  std::thread thread_;
  std::atomic<bool> is_writing_{false};
  // Written by the thread, read once it has been joined.
  Status written_;
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_SPILL_H_
