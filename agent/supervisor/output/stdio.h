// One pipe that a worker writes to: its bytes go to a file, to the agent, and the last of them are
// kept as evidence. The worker is never held up: a full disk, a file system that does not answer or
// a slow agent loses bytes here and nowhere else. Supervisor's thread only.
#ifndef CADRE_AGENT_SUPERVISOR_OUTPUT_STDIO_H_
#define CADRE_AGENT_SUPERVISOR_OUTPUT_STDIO_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "agent/supervisor/outbox.h"
#include "agent/supervisor/output/log_file.h"
#include "base/scoped_fd.h"

namespace cadre::supervisor {

// Evidence kept of each stream for ExitedFrame::last_lines: a traceback of a hundred calls, or a
// message that names every parameter of a model, with the exception at its beginning.
inline constexpr size_t kMaxTailBytes = 64 << 10;
// A progress line longer than this is passed on in pieces.
inline constexpr size_t kMaxProgressLineBytes = 16 << 10;
// Read from a pipe at once.
inline constexpr size_t kMaxReadBytes = 256 << 10;

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

class CapturedStream {
 public:
  CapturedStream() = default;
  struct Options {
    uint64_t group = 0;
    uint8_t stream = kStdoutStream;  // the progress stream is passed on in whole lines
    bool forward = true;
  };
  // `log`: null: there is no file.
  CapturedStream(Options options, ScopedFd pipe, std::unique_ptr<LogFile> log);
  // What comes from now on is another group's.
  void Become(Options options) { options_ = options; }
  // May be null.
  LogFile* log() const { return log_.get(); }
  void Log(std::unique_ptr<LogFile> log) { log_ = std::move(log); }

  int fd() const { return pipe_.get(); }
  bool open() const { return pipe_.ok(); }
  // Not watched until its file has room again.
  bool paused = false;

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
  void Keep(absl::string_view bytes);
  void Forward(absl::string_view bytes, Outbox& outbox);
  void ForwardLines(absl::string_view bytes, Outbox& outbox);

  Options options_;
  ScopedFd pipe_;
  std::unique_ptr<LogFile> log_;
  bool cut_ = false;  // bytes before tail_ exist
  uint32_t dropped_ = 0;
  std::string tail_;  // of up to twice as much, so that its beginning is seldom taken off
  std::string line_;  // progress only: not yet ended
};

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_OUTPUT_STDIO_H_
