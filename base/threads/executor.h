// Runs tasks one at a time and in the order in which they came, as a state machine without locks
// needs it. One thread, the loop, is there for them. A task that comes while the loop rests and
// nothing else runs or waits is run by its poster instead: waking another thread takes longer than
// most tasks do.
#ifndef CADRE_BASE_THREADS_EXECUTOR_H_
#define CADRE_BASE_THREADS_EXECUTOR_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "base/time.h"

namespace cadre {

class Executor {
 public:
  struct Task {
    absl::AnyInvocable<void()> run;
    // A poster that is at it runs this too; otherwise it is left to the loop.
    bool anywhere = false;
    // Tasks of no bytes are not counted: their number is bounded by something else.
    size_t bytes = 0;
  };
  // Tasks that wait, or that may wait, and their bytes; any number unless said.
  struct Load {
    size_t tasks = std::numeric_limits<size_t>::max();
    size_t bytes = std::numeric_limits<size_t>::max();
  };
  struct Options {
    // When the loop has to be back though nothing was posted; asked by posters that have run a
    // task. Without it all tasks are the loop's.
    std::function<MonoTime()> due;
    // Wakes a loop that does not wait in Await. Called with a lock held: it must not call back.
    std::function<void()> wake;
  };

  explicit Executor(Options options) : options_(std::move(options)) {}
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // --- on any thread ---

  // Whether the caller runs its task itself, now, and calls Leave after it. That runs more if it
  // came meanwhile and may run anywhere.
  bool Enter() ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);
  // False: more would wait than `room` allows, or Close was called; the task is destroyed.
  bool Add(Task task, const Load& room) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Add(Task task) { return Add(std::move(task), Load()); }
  // As Add of one after another, but under one lock: the loop, which would else begin with the
  // first of them, takes all. False: there was no room for one of them, which is destroyed with
  // those after it, or Close was called.
  bool AddAll(std::vector<Task> tasks, const Load& room) ABSL_LOCKS_EXCLUDED(mutex_);
  Load load() const ABSL_LOCKS_EXCLUDED(mutex_);

  // --- on the loop's thread, which has the turn unless it rests ---

  // Lets posters run tasks until Take. They wake the loop when it has to be back before `until`.
  void Rest(MonoTime until) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until then, or until there is something to do for the loop.
  void Await(MonoTime until) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until no poster runs a task, and takes what has come.
  std::deque<Task> Take() ABSL_LOCKS_EXCLUDED(mutex_);
  bool has_tasks() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes what has come; nothing is added from now on. Not while the loop rests.
  std::deque<Task> Close() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class Runner { kNobody, kLoop, kPoster };

  bool AddLocked(Task&& task, const Load& room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeLoop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::deque<Task> TakeTasks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The next task that the poster who has the turn runs; false: it has the turn no longer.
  bool NextForPoster(MonoTime due, Task* next) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Runner runner_ ABSL_GUARDED_BY(mutex_) = Runner::kLoop;
  // The loop is to take the turn; no poster does before it.
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  MonoTime rests_until_ ABSL_GUARDED_BY(mutex_);
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  // Of those that count.
  Load load_ ABSL_GUARDED_BY(mutex_) = {0, 0};
};

}  // namespace cadre

#endif  // CADRE_BASE_THREADS_EXECUTOR_H_
