// One pipe that a worker writes to: its bytes go to a file, to the agent, and the last of them are
// kept as evidence. The worker is never held up: a full disk or a slow agent loses bytes here and
// nowhere else. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_STDIO_H_
#define CADRE_AGENT_SUPERVISOR_STDIO_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "agent/supervisor/outbox.h"
#include "base/scoped_fd.h"

namespace cadre::supervisor {

// Evidence kept of each stream for ExitedFrame::last_lines.
inline constexpr size_t kMaxTailBytes = 4 << 10;
// A progress line longer than this is passed on in pieces.
inline constexpr size_t kMaxProgressLineBytes = 16 << 10;

inline constexpr uint8_t kStdoutStream = 1;
inline constexpr uint8_t kStderrStream = 2;
inline constexpr uint8_t kProgressStream = 3;

// The two ends of a worker's pipe, both O_CLOEXEC; the end read is non-blocking and the pipe as
// large as the system allows, up to 1 MiB.
struct WorkerPipe {
  ScopedFd read_end;
  ScopedFd write_end;
};
// Not ok() ends: errno says why.
WorkerPipe MakeWorkerPipe();

// A line for whoever reads the agent's stderr; left out if that would block.
void Complain(absl::string_view line);

// Creates the directories above `path`. False: errno says why.
bool MakeDirectoriesFor(const std::string& path);

class CapturedStream {
 public:
  CapturedStream() = default;
  struct Options {
    uint64_t group = 0;
    uint8_t stream = kStdoutStream;  // the progress stream is passed on in whole lines
    bool forward = true;
    std::string path;  // of `file`, for error messages
  };
  CapturedStream(Options options, ScopedFd pipe, ScopedFd file);
  // What comes from now on is another group's. `file`: goes on in this one; not ok(): as before.
  void Become(Options options, ScopedFd file);
  const std::string& path() const { return options_.path; }

  int fd() const { return pipe_.get(); }
  bool open() const { return pipe_.ok(); }

  // Reads once. False at the end of the stream.
  bool ReadOnce(Outbox& outbox);
  // Reads what is in the pipe now, and not what is written meanwhile.
  void ReadAvailable(Outbox& outbox);
  // Passes on what is left of an unfinished line, and the count of what was dropped; says what the
  // file lacks.
  void FlushRest(Outbox& outbox);
  void Close() { pipe_.Reset(); }

  // The last kMaxTailBytes, from the start of a line where one starts in them.
  std::string Tail() const;

 private:
  // Number of bytes read; 0 at the end; -1 when there is nothing.
  ssize_t ReadUpTo(size_t limit, Outbox& outbox);
  void WriteToFile(absl::string_view bytes);
  // How much of it; errno says why not all.
  size_t Append(absl::string_view bytes);
  void Keep(absl::string_view bytes);
  void Forward(absl::string_view bytes, Outbox& outbox);
  void ForwardLines(absl::string_view bytes, Outbox& outbox);

  Options options_;
  ScopedFd pipe_;
  ScopedFd file_;
  uint64_t file_lost_ = 0;  // bytes since the last that could be written to the file
  uint64_t file_lost_in_all_ = 0;
  bool said_removed_ = false;
  bool cut_ = false;  // bytes before tail_ exist
  uint32_t dropped_ = 0;
  std::string tail_;
  std::string line_;  // progress only: not yet ended
};

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_STDIO_H_
