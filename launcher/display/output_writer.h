// Writes to the launcher's standard output and error without ever making the caller wait: a bounded
// queue and one thread that may block. What cannot be written is left out: a full disk ends nobody.
// Thread safe.
#ifndef CADRE_LAUNCHER_DISPLAY_OUTPUT_WRITER_H_
#define CADRE_LAUNCHER_DISPLAY_OUTPUT_WRITER_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace cadre::launcher {

// A terminal or pipe that takes nothing for so long stands still.
inline constexpr absl::Duration kReaderStandsStill = absl::Seconds(2);
// Bytes that may wait for one that does not read. Beyond it output is left out, and a line says how
// much. Before that HasRoom asks the caller to wait for one that reads.
inline constexpr size_t kOutputQueueBytes = 8 << 20;

class OutputWriter {
 public:
  // The thread starts with the first Write. `limit` is kOutputQueueBytes but for tests.
  explicit OutputWriter(size_t limit = kOutputQueueBytes);
  // Abandons what has not been written; call Flush before.
  ~OutputWriter();
  OutputWriter(const OutputWriter&) = delete;
  OutputWriter& operator=(const OutputWriter&) = delete;

  // Whole lines, in order across descriptors.
  void Write(int fd, std::string text);

  // No: much waits to be written, and the reader takes it.
  bool HasRoom() const;

  // Waits until all is written, as long as something is within `limit`. False: something was left.
  bool Flush(absl::Duration limit);

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
