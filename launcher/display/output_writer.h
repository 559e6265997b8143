// Writes to the launcher's standard output and error without ever making the caller wait: a bounded
// queue and one thread that may block. The caller asks HasRoom() before it takes what it is to
// write, as a program waits that writes to a full pipe. What cannot be written is left out: a full
// disk ends nobody. Thread safe.
#ifndef CADRE_LAUNCHER_DISPLAY_OUTPUT_WRITER_H_
#define CADRE_LAUNCHER_DISPLAY_OUTPUT_WRITER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace cadre::launcher {

// A terminal, or a file, that takes nothing for so long stands still. A pipe does not: its reader
// reads on, or leaves.
inline constexpr absl::Duration kReaderStandsStill = absl::Seconds(2);
// Bytes that may wait for a reader. Beyond it output is left out, and a line says how much. Long
// before that HasRoom asks the caller to wait; what workers had in their pipes when they ended
// still comes.
inline constexpr size_t kOutputQueueBytes = 64 << 20;

class OutputWriter {
 public:
  // The thread starts with the first Write. Both limits are other ones for tests alone.
  explicit OutputWriter(size_t limit = kOutputQueueBytes,
                        absl::Duration stands_still = kReaderStandsStill);
  // Abandons what has not been written; call Flush before.
  ~OutputWriter();
  OutputWriter(const OutputWriter&) = delete;
  OutputWriter& operator=(const OutputWriter&) = delete;

  // Whole lines, in order across descriptors.
  void Write(int fd, std::string text);

  // No: much waits to be written, and its reader takes it, or is to take it.
  bool HasRoom() const;

  // Waits until all is written, as long as something is within `limit`. False: something was left.
  bool Flush(absl::Duration limit);
  // The same, and waits for who reads a pipe, however long that takes, until `interrupted`, which
  // is asked again and again, says that nobody wants to wait any more.
  bool FlushPatiently(absl::Duration limit, const std::function<bool()>& interrupted);

  // A line for each descriptor that took less than it was to, with how much is lost and why. A
  // reader that is gone (EPIPE) wants no more. The first loss on standard output is said at once
  // too.
  std::vector<std::string> Losses() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace cadre::launcher

#endif  // CADRE_LAUNCHER_DISPLAY_OUTPUT_WRITER_H_
