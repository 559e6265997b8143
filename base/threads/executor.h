// Runs tasks one at a time and in the order in which they were posted, as a state machine without
// locks needs it. One thread, the loop, runs them. If the loop rests (waits) and no other task runs
// or waits, the poster runs its task itself, because waking another thread takes longer than most
// tasks.
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
    // The poster that has the turn may run this task too; otherwise only the loop may.
    bool anywhere = false;
    // Tasks of 0 bytes are not counted: something else bounds their number.
    size_t bytes = 0;
  };
  // A number of waiting tasks and their bytes, or a limit for them; unlimited by default.
  struct Load {
    size_t tasks = std::numeric_limits<size_t>::max();
    size_t bytes = std::numeric_limits<size_t>::max();
  };
  struct Options {
    // Returns when the loop must run next even if nothing is posted; posters call it after they
    // have run a task. Without it the loop runs all tasks.
    std::function<MonoTime()> due;
    // Wakes a loop that does not wait in Await. It is called with a lock held and must not call
    // back.
    std::function<void()> wake;
  };

  explicit Executor(Options options) : options_(std::move(options)) {}
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // --- on any thread ---

  // If it returns true, the caller must run its task now and call Leave after it. Leave also runs
  // tasks that were posted meanwhile and have `anywhere` set.
  bool Enter() ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns false, and destroys the task, if more than `room` would wait or Close was called.
  bool Add(Task task, const Load& room) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Add(Task task) { return Add(std::move(task), Load()); }
  // Adds tasks as Add does, but under one lock: the loop takes all of them, where it might
  // otherwise take the first alone. Returns false if there was no room for one of them or Close was
  // called; that task and those after it are destroyed.
  bool AddAll(std::vector<Task> tasks, const Load& room) ABSL_LOCKS_EXCLUDED(mutex_);
  Load load() const ABSL_LOCKS_EXCLUDED(mutex_);

  // --- on the loop's thread, which has the turn except between Rest and Take ---

  // Lets posters run tasks until Take. They wake the loop if it is due before `until`.
  void Rest(MonoTime until) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until `until`, or until the loop has something to do.
  void Await(MonoTime until) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until no poster runs a task, and takes the tasks that wait.
  std::deque<Task> Take() ABSL_LOCKS_EXCLUDED(mutex_);
  bool has_tasks() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes the tasks that wait; no task is accepted from now on. The loop must not rest.
  std::deque<Task> Close() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class Runner { kNone, kLoop, kPoster };

  bool AddLocked(Task&& task, const Load& room) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeLoop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::deque<Task> TakeTasks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Finds the next task for the poster that has the turn. False: the poster has lost the turn.
  bool NextForPoster(MonoTime due, Task* next) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Runner runner_ ABSL_GUARDED_BY(mutex_) = Runner::kLoop;
  // The loop waits for the turn; posters do not take it before the loop.
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  MonoTime rests_until_ ABSL_GUARDED_BY(mutex_);
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  // Counts only tasks with bytes.
  Load load_ ABSL_GUARDED_BY(mutex_) = {0, 0};
};

}  // namespace cadre

#endif  // CADRE_BASE_THREADS_EXECUTOR_H_
