// Does file work for a loop that must not block: a call to a file system that another machine or
// process serves (NFS, FUSE) may never return. A thread of its own carries out tasks one at a time,
// in the order in which they were posted. Thread safe.
#ifndef CADRE_BASE_THREADS_FILE_THREAD_H_
#define CADRE_BASE_THREADS_FILE_THREAD_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/time/time.h"
#include "base/time.h"

namespace cadre {

// A task that has run for this long is considered hung; callers do not wait for the tasks behind
// it.
inline constexpr absl::Duration kFileTaskHungAfter = absl::Seconds(1);

// How long to wait at shutdown for the tasks that are left.
inline constexpr absl::Duration kDrainLimit = absl::Seconds(1);

class FileThread {
 public:
  using Task = std::function<void()>;
  struct Options {
    // Gives the thread descriptors, a umask and a working directory of its own, with only the
    // standard descriptors to begin with. Closing a file may block for ever too, and would do so in
    // every process that is forked with a copy of it. Tasks must close what they open.
    bool own_descriptors = false;
    // The bytes that waiting tasks may have together (HasRoom).
    size_t room = 16 << 20;
  };

  // The thread starts with the first task. If no thread can be created, the next task tries again,
  // and until then tasks wait as they do for a hung file system.
  explicit FileThread(Options options);
  // Abandons unfinished tasks (call Drain before); they may still run, so tasks must own what they
  // use.
  ~FileThread();
  FileThread(const FileThread&) = delete;
  FileThread& operator=(const FileThread&) = delete;

  // Becomes readable after a task with `notify` set, and when there is room again after HasRoom
  // returned false. ClearReadable resets it.
  int fd() const;
  void ClearReadable();

  void Post(Task task, size_t bytes = 0, bool notify = false);
  // Whether `bytes` more fit into the room beside those of the unfinished tasks. If it returns
  // false, fd() becomes readable once half of the room is free.
  bool HasRoom(size_t bytes);
  // When the running task will count as hung; Never() if no task runs.
  MonoTime HungAt() const;
  bool IsHung(MonoTime now) const { return HungAt() <= now; }
  // Returns false if tasks were left after `limit`.
  bool Drain(absl::Duration limit);
  // For callers that need the result: waits for the task and for those posted before, for `limit`
  // at most. False: the task finishes later, or is not posted at all because the thread hangs
  // already.
  bool RunWithin(absl::Duration limit, Task task);
  // The same for work that returns a value; nullopt in place of false.
  template <typename Work>
  std::optional<std::invoke_result_t<const Work&>> ResultWithin(absl::Duration limit, Work work) {
    // The thread shares it, because the work may finish after this function has returned.
    const auto result = std::make_shared<std::optional<std::invoke_result_t<const Work&>>>();
    if (!RunWithin(limit, [result, work = std::move(work)] { *result = work(); })) {
      return std::nullopt;
    }
    return std::move(*result);
  }

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace cadre

#endif  // CADRE_BASE_THREADS_FILE_THREAD_H_
