// Writes to the launcher's standard output and error without ever blocking the caller: a bounded
// queue and one thread that may block. The caller checks HasRoom() before it reads what it will
// write, which slows programs down as a full pipe does. What cannot be written is dropped: a full
// disk does not end the launcher. Thread safe.
#ifndef CADRE_LAUNCHER_DISPLAY_OUTPUT_WRITER_H_
#define CADRE_LAUNCHER_DISPLAY_OUTPUT_WRITER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace cadre::launcher {

// A terminal or file that accepts nothing for this long is considered hung. A pipe is not, because
// its reader either continues or closes it.
inline constexpr absl::Duration kReaderHungTimeout = absl::Seconds(2);
// The limit of queued bytes. Beyond it output is dropped, and a line says how much. HasRoom returns
// false long before that, so that what workers had in their pipes when they ended still fits.
inline constexpr size_t kOutputQueueBytes = 64 << 20;

class OutputWriter {
 public:
  // The thread starts with the first Write. Only tests pass other limits.
  explicit OutputWriter(size_t limit = kOutputQueueBytes,
                        absl::Duration hung_timeout = kReaderHungTimeout);
  // Abandons what has not been written; call Flush before.
  ~OutputWriter();
  OutputWriter(const OutputWriter&) = delete;
  OutputWriter& operator=(const OutputWriter&) = delete;

  // `text` has whole lines; the order is kept across descriptors.
  void Write(int fd, std::string text);

  // Returns false if much is queued and the caller should wait, because the reader still reads or
  // is a pipe.
  bool HasRoom() const;

  // Waits until all is written, as long as there is progress within `limit`. False: something was
  // left.
  bool Flush(absl::Duration limit);
  // The same, but waits for the reader of a pipe without a limit, until `interrupted`, which is
  // polled, returns true.
  bool FlushUntilInterrupted(absl::Duration limit, const std::function<bool()>& interrupted);

  // A line for each descriptor whose output was not written completely, with how much is lost and
  // why. A closed reader (EPIPE) is no loss. The first loss on standard output is reported at once
  // too.
  std::vector<std::string> Losses() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_OUTPUT_WRITER_H_
