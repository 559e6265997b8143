// Work on files for a loop that must not wait: what touches a file system may take for ever, where
// that is another machine's or a process's (NFS, FUSE) and does not answer. One thread of its own,
// which carries out tasks one at a time and in the order in which they came. Thread safe.
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

// A task that has run for this long stands still: nobody waits for what is behind it.
inline constexpr absl::Duration kStandsStillAfter = absl::Seconds(1);

// Worth waiting for what is left at an end.
inline constexpr absl::Duration kDrainLimit = absl::Seconds(1);

class FileThread {
 public:
  using Task = std::function<void()>;
  struct Options {
    // The thread has descriptors, a umask and a working directory of its own, with the standard
    // descriptors alone to begin with. Closing a file may take for ever as well, and would in
    // every process that is forked with a copy of it. What tasks open is for tasks to close.
    bool own_descriptors = false;
    // Bytes for which there is room.
    size_t room = 16 << 20;
  };

  // The thread starts with the first task; where none is to be had, with the next one that comes,
  // and until then tasks wait as for a file system that does not answer.
  explicit FileThread(Options options);
  // Abandons what is not done (call Drain before): tasks must own what they use.
  ~FileThread();
  FileThread(const FileThread&) = delete;
  FileThread& operator=(const FileThread&) = delete;

  // Readable after a task for which `tells` was set, and once there is room again; TakeNews makes
  // it quiet.
  int fd() const;
  void TakeNews();

  void Post(Task task, size_t bytes = 0, bool tells = false);
  // Whether so much more, with what the tasks that are not done were said to take, is within the
  // room. False: fd() tells when half of it is free.
  bool HasRoom(size_t bytes);
  // When it stands still unless it gets on; Never() while nothing is to be done.
  MonoTime StandsStillAt() const;
  bool StandsStill(MonoTime now) const { return StandsStillAt() <= now; }
  // False: not all was done within `limit`.
  bool Drain(absl::Duration limit);
  // For who cannot go on without it: waits for the task, and what was posted before, within
  // `limit`. False: it is done later, or not at all where the thread stands still already.
  bool RunWithin(absl::Duration limit, Task task);
  // The same for work that gives something; nullopt for false.
  template <typename Work>
  std::optional<std::invoke_result_t<const Work&>> ResultWithin(absl::Duration limit, Work work) {
    // The thread's too: it may be done later.
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
