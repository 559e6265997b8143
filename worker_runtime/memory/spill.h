// Writes states from memory to a directory, now and then, behind the training.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_SPILL_H_
#define CADRE_WORKER_RUNTIME_MEMORY_SPILL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/time.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/worker.h"
#include "worker_runtime/memory/bounded_call.h"
#include "worker_runtime/memory/files/memory_slots.h"
#include "worker_runtime/memory/spill_directory.h"

namespace cadre::memory {

// All ranks must write the same steps, though their clocks differ: rank 0 says in the store after
// which step it is everyone's turn, at the second save behind it. Whoever saves that one has
// trained with rank 0 in a step behind the one that rank 0 said it in. A rank that missed a save of
// these spoils that turn and no other. One thread at a time.
class Spill {
 public:
  // `rank` of `ranks` states, as SpillDirectory has them. `worker` must outlive it.
  Spill(Worker& worker, std::string directory, int rank, int ranks, std::chrono::nanoseconds every);
  // Waits for what is being written, and for a call to the store.
  ~Spill();
  Spill(const Spill&) = delete;
  Spill& operator=(const Spill&) = delete;

  const SpillDirectory& directory() const { return directory_; }

  // After each commit of this generation: writes it, where that is its turn, from its slot, which
  // is reserved meanwhile. Does not wait for that, and a moment at most for the store.
  void Committed(const SavedStep& saved, MemorySlots& slots);
  // What went wrong since the last state that was written, said once.
  Status TakeProblem();

 private:
  static constexpr int64_t kNone = -1;

  // Empty: it is not that one's turn.
  std::string TokenFor(int64_t step);
  void Schedule(int64_t step);
  // What rank 0 has said, as the store has it.
  Result<std::string> Ask();
  void Hear();
  // Training goes back: what was said of the steps that it comes to again is not for these.
  void GoBackTo(int64_t step);
  // Of rank 0, on the writing thread.
  void CleanUp();

  Worker& worker_;
  const SpillDirectory directory_;
  const std::chrono::nanoseconds every_;
  BoundedCall calls_;
  MonoTime last_;
  bool has_begun_ = false;
  // Those committed last before this one.
  int64_t step_before_ = kNone;
  int64_t step_before_that_ = kNone;
  // The last two turns, each "STEP TOKEN;": at the second save after that step.
  std::string schedule_;
  // What is heard first after training went back is of before.
  bool has_gone_back_ = false;
  std::string outdated_;
  // Of rank 0: the step of the last of them. It says no other until that one's turn.
  int64_t said_at_ = kNone - 1;
  // And the tokens of turns whose directories may be there and not whole. The writing thread's
  // while there is one.
  std::vector<std::string> said_;
  std::thread thread_;
  std::atomic<bool> is_writing_{false};
  // Written by the thread, read once it has been joined.
  Status written_;
  bool is_said_ = true;
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_SPILL_H_
