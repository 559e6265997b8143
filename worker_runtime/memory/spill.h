// Writes states from memory to a directory that all nodes share, at intervals and in the background
// of training, for the case that all nodes are lost.
#ifndef CADRE_WORKER_RUNTIME_MEMORY_SPILL_H_
#define CADRE_WORKER_RUNTIME_MEMORY_SPILL_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/time.h"
#include "cadre/result.h"
#include "cadre/status.h"
#include "cadre/worker.h"
#include "worker_runtime/memory/files/memory_slots.h"

namespace cadre::memory {

// States in a directory that all nodes share, for the case that all nodes are lost:
//
//   DIR/step_418_5f3a90c1/rank-3-of-8_1048576_89abcdef   of that many bytes with that CRC-32C
//   DIR/step_418_5f3a90c1/.tmp-3                         unfinished, or left by a dead rank
//
// The directory may belong to any user. Directories of steps, and the files in them, count only if
// they belong to this user or root (base/own_files.h), because states are unpickled.
//
// A step is complete once the states of all of its ranks are there. The token is unique to one
// save, so states of two training runs are never combined.

inline constexpr int kSpillsKept = 2;

// A step that is complete.
struct Spilled {
  int64_t step = 0;
  std::string name;
};

// Thread safe.
class SpillDirectory {
 public:
  // This object writes and reads the state of `rank`, one of `ranks`.
  SpillDirectory(std::string path, int rank, int ranks);

  const std::string& path() const { return path_; }

  // Creates the directory if it is missing. Returns an error if no file can be written there.
  Status Check() const;

  static std::string Name(int64_t step, const std::string& token);
  // Returns nullopt if `name` is not a step's directory.
  static std::optional<int64_t> StepOf(const std::string& name);
  // The state is synced to disk when this returns.
  Status Write(const std::string& name, const char* state, size_t bytes) const;

  // Returns the complete steps of this number of ranks, newest first.
  std::vector<Spilled> Complete() const;
  // Returns the newest complete step and its number of ranks; nullopt if no step is complete.
  std::optional<std::pair<int64_t, int>> Newest() const;
  // Describes the newest complete step of another number of ranks; empty if there is none.
  std::string DescribeOtherRankCounts() const;
  // Explains why a step's directory is ignored: it belongs to another user, who could have written
  // anything there. The text is empty if there is no such directory.
  std::string DescribeOtherUsers() const;
  // Reads the state into `slots`; the caller commits it. DATA_LOSS: size or checksum does not
  // match.
  Status Read(const std::string& name, MemorySlots& slots) const;

  // Removes old steps. It keeps the newest complete ones, all newer ones, those with a token in
  // `recent`, and those of another number of ranks.
  void RemoveOld(const std::vector<std::string>& recent) const;
  // Removes the steps with these tokens that are incomplete and not being written. Returns the
  // tokens of those that are still being written.
  std::vector<std::string> RemoveUnfinished(const std::vector<std::string>& tokens) const;

 private:
  std::optional<std::pair<int64_t, int>> NewestExcept(int ranks) const;
  std::string Path(const std::string& name) const;

  const std::string path_;
  const int rank_;
  const int ranks_;
};

// Bounds the time that a caller spends in calls that may take long.
//
// Calls run one at a time, each on its own thread. Make() is called by one thread only.
class BoundedCall {
 public:
  using Call = std::function<Result<std::string>()>;

  explicit BoundedCall(absl::Duration timeout) : timeout_(timeout) {}
  // Waits until the running call has ended.
  ~BoundedCall();
  BoundedCall(const BoundedCall&) = delete;
  BoundedCall& operator=(const BoundedCall&) = delete;

  // Returns the call's result. DEADLINE_EXCEEDED: this call did not end within the timeout and
  // goes on in the background, or an earlier one still does. After such a timeout Make() does not
  // wait at all until one call has ended within the timeout.
  Result<std::string> Make(Call call);
  // Returns true if the next Make() will not wait for its call.
  bool is_late() const;

 private:
  const absl::Duration timeout_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool is_running_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_late_ ABSL_GUARDED_BY(mutex_) = false;
  Result<std::string> answer_ ABSL_GUARDED_BY(mutex_) = std::string();
  std::thread thread_;
};

// All ranks must write the same steps although their clocks differ. So rank 0 publishes in the
// store an entry with its current step, and every rank writes the second save after that step. A
// rank that commits that save has completed a training step together with rank 0 since rank 0
// published the entry, so it can read it. A rank that missed one of these saves spoils that turn
// and no other. One thread at a time may call this.
class Spill {
 public:
  // Writes the state of `rank` of `ranks`, as in SpillDirectory. `worker` must outlive this object.
  Spill(Worker& worker, std::string directory, int rank, int ranks, std::chrono::nanoseconds every);
  // Waits until the running write and the running call to the store have ended.
  ~Spill();
  Spill(const Spill&) = delete;
  Spill& operator=(const Spill&) = delete;

  const SpillDirectory& directory() const { return directory_; }

  // Called after each commit of this generation. If it is the step's turn, begins to write it from
  // its slot, which stays reserved meanwhile. It does not wait for the write, and for the store 1 s
  // at most.
  void Committed(const SavedStep& saved, MemorySlots& slots);
  // Returns the error since the last state that was written; returns each only once.
  Status TakeProblem();

 private:
  static constexpr int64_t kNone = -1;

  // Returns the token of the turn at `step`; empty if `step` is not to be written.
  std::string TokenFor(int64_t step);
  void Schedule(int64_t step);
  // Returns the entries that rank 0 has published in the store.
  Result<std::string> FetchSchedule();
  void ReadSchedule();
  // Called when training goes back. Entries published before that do not apply to repeated steps.
  void RollBackTo(int64_t step);
  // Rank 0 only, on the writing thread.
  void CleanUp();

  Worker& worker_;
  const SpillDirectory directory_;
  const std::chrono::nanoseconds every_;
  BoundedCall calls_;
  MonoTime last_;
  bool has_begun_ = false;
  // The two steps that were committed last before the current one.
  int64_t step_before_ = kNone;
  int64_t step_before_that_ = kNone;
  // The last two entries that rank 0 published, each "STEP TOKEN;". An entry's turn is at the
  // second save after STEP.
  std::string schedule_;
  // The entries that are read first after training went back are outdated, and are kept in
  // outdated_.
  bool has_gone_back_ = false;
  std::string outdated_;
  // Rank 0 only: the step of the last entry. Rank 0 publishes no other one until that one's turn.
  int64_t published_at_ = kNone - 1;
  // Rank 0 only: the tokens of turns whose directories may exist and be incomplete. The writing
  // thread owns this while it runs.
  std::vector<std::string> published_;
  std::thread thread_;
  std::atomic<bool> is_writing_{false};
  // Written by the thread; read only after it has been joined.
  Status written_;
  bool is_reported_ = true;
};

}  // namespace cadre::memory

#endif  // CADRE_WORKER_RUNTIME_MEMORY_SPILL_H_
