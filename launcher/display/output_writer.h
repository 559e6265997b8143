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

// Bytes that may wait for a terminal or pipe that does not read. Beyond it output is left out, and
// a line says how much.
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

  // Waits until all is written, `limit` at most. False: something was left.
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
