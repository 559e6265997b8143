// Workers' output: their pipes, their log files, what is sent to the agent, and the pipes of a new
// process; and the supervisor's own messages. start.cc prepares the log files of a new process. A
// worker is never blocked for long: if the disk is full, or a file system or the agent does not
// respond, only output is lost. Supervisor's thread only, unless a comment says otherwise.
#ifndef CADRE_AGENT_SUPERVISOR_OUTPUT_H_
#define CADRE_AGENT_SUPERVISOR_OUTPUT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/supervisor/frame_queue.h"
#include "agent/supervisor/frames.h"
#include "base/scoped_fd.h"
#include "base/threads/file_thread.h"

namespace cadre::supervisor {

// Writes a line to the agent's standard error, which may be a file whose file system does not
// answer: it never blocks, and the line is dropped if too many are queued. Any thread.
void Warn(absl::string_view line);
// Called before the process exits: waits briefly until the lines are written.
void FlushWarnings();

// Called on the file thread only. Makes the directories above `path`; the last of them belongs to
// this user (base/own_files.h). On failure errno is set as well.
absl::Status MakeDirectoriesFor(const std::string& path);

// Writes a worker's log file, or the file that the user named in its place: then the log file is a
// link to that. A file system that does not answer delays no other file: output that
// is not written in time is dropped above a bound, counted, and marked in the file where writing
// resumes. A second file records when the content was written (base/log_paths.h). The class belongs
// to the supervisor's thread, the File to the file thread.
class LogFile {
 public:
  // Used by the file thread alone.
  struct File;

  // `path` may be empty if the user named a file.
  LogFile(FileThread& files, std::string path, NamedFile named = {});
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  // Has the file opened by the file thread.
  void Open();
  // Called on the file thread, by a start that waits for the file (start.cc). Returns 0, or the
  // errno of the failed step; a full disk is reported, but is not a failure. `step` is set to what
  // it does, for the report of a failure.
  static int OpenNow(File& file, std::string* step);
  std::shared_ptr<File> file() const { return file_; }

  void Append(absl::string_view bytes);
  // Continues at another path, with the content written so far if the file can be moved, or in the
  // file that the user named.
  void MoveTo(std::string path, NamedFile named = {});
  // Writes to the file how many bytes it lacks.
  void Finish();

  const std::string& path() const { return path_; }

 private:
  FileThread& files_;
  std::string path_;
  std::string shown_;  // the path in messages: of the file that the user named, if there is one
  const std::shared_ptr<File> file_;
  uint64_t skipped_ = 0;  // bytes dropped since the last that were given to the file thread
};

// The evidence kept of each stream for ExitedFrame::last_lines: enough for a traceback of a hundred
// calls, or for a message that names every parameter of a model after the exception.
inline constexpr size_t kMaxTailBytes = 64 << 10;
// A longer progress line is passed on in pieces.
inline constexpr size_t kMaxProgressLineBytes = 16 << 10;
// The most that one turn reads from a pipe.
inline constexpr size_t kMaxReadBytes = 256 << 10;

inline constexpr uint8_t kStdoutStream = 1;
inline constexpr uint8_t kStderrStream = 2;
inline constexpr uint8_t kProgressStream = 3;

// The two ends of a worker's pipe, both O_CLOEXEC. The read end is non-blocking, and the pipe is as
// large as the system allows, up to 1 MiB.
struct WorkerPipe {
  ScopedFd read_end;
  ScopedFd write_end;
};
// On failure the ends are not ok() and errno is set.
WorkerPipe MakeWorkerPipe();

// One pipe that a worker writes to: its bytes go to a file and to the agent, and the last of them
// are kept as evidence.
class CapturedStream {
 public:
  CapturedStream() = default;
  struct Options {
    uint64_t group = 0;
    uint8_t stream = kStdoutStream;  // the progress stream is passed on in whole lines
    bool forward = true;
  };
  // `log`: null if there is no file.
  CapturedStream(Options options, ScopedFd pipe, std::unique_ptr<LogFile> log);
  // Attributes further output to another group.
  void AttributeTo(Options options) { options_ = options; }
  // May be null.
  LogFile* log() const { return log_.get(); }
  void SetLog(std::unique_ptr<LogFile> log) { log_ = std::move(log); }

  int fd() const { return pipe_.get(); }
  bool open() const { return pipe_.ok(); }
  // Whether the output is sent to the agent.
  bool forwarded() const { return options_.forward; }
  // The pipe is not polled until its file, or the agent's queue, has room again.
  bool paused = false;

  // Reads once. Returns false at the end of the stream.
  bool ReadOnce(FrameQueue& outbox);
  // Reads what is in the pipe now, but not what is written meanwhile.
  void ReadAvailable(FrameQueue& outbox);
  // Passes on an unfinished line and the count of dropped bytes, and writes to the file what it
  // lacks.
  void FlushRest(FrameQueue& outbox);
  void Close() { pipe_.Reset(); }

  // The last kMaxTailBytes, from the start of a line if one starts in them.
  std::string Tail() const;

 private:
  // Returns the number of bytes read; 0 at the end; -1 if there is nothing to read.
  ssize_t ReadUpTo(size_t limit, FrameQueue& outbox);
  void AppendToTail(absl::string_view bytes);
  void Forward(absl::string_view bytes, FrameQueue& outbox);
  void ForwardLines(absl::string_view bytes, FrameQueue& outbox);

  Options options_;
  ScopedFd pipe_;
  std::unique_ptr<LogFile> log_;
  bool cut_ = false;  // bytes before tail_ exist
  uint32_t dropped_ = 0;
  std::string tail_;  // grows to twice its size, so that it is seldom trimmed
  std::string line_;  // progress only: the unfinished line
};

// The log files and output pipes of a new process.
struct OutputChannels {
  std::unique_ptr<LogFile> stdout_log;
  std::unique_ptr<LogFile> stderr_log;
  WorkerPipe standard_output;
  WorkerPipe standard_error;
  WorkerPipe progress;
};

// Returns false and sets errno on failure. `one_stream`: what the process writes to its standard
// error comes with its standard output.
bool MakePipes(OutputChannels& channels, bool one_stream = false);

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_OUTPUT_H_
