// Lines of progress for the launcher, through the descriptor it handed down. Never blocks, never
// fails: a line that does not fit is dropped.
#ifndef CADRE_WORKER_RUNTIME_PROGRESS_PROGRESS_WRITER_H_
#define CADRE_WORKER_RUNTIME_PROGRESS_PROGRESS_WRITER_H_

#include <cstdint>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/time.h"

namespace cadre::progress {

// Reports that come sooner after the last one are dropped.
constexpr absl::Duration kMinProgressInterval = absl::Milliseconds(100);

// Thread safe.
class ProgressWriter {
 public:
  // Writes to `fd`, which stays open and is not owned. Anything but a pipe or a socket is ignored:
  // the number is then a leftover and means some other file of this process.
  explicit ProgressWriter(int fd);

  // "step=418 samples_per_second=1234.5 loss=0.25\n"
  void Report(MonoTime now, int64_t step, double samples_per_second, double loss);

 private:
  absl::Mutex mutex_;
  int fd_ ABSL_GUARDED_BY(mutex_);
  bool wrote_ ABSL_GUARDED_BY(mutex_) = false;
  MonoTime last_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cadre::progress

#endif  // CADRE_WORKER_RUNTIME_PROGRESS_PROGRESS_WRITER_H_
