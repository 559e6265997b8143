#include "agent/supervisor/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/supervisor/frames.h"
#include "base/clock.h"
#include "base/disk_full.h"
#include "base/log_paths.h"
#include "base/own_files.h"
#include "base/scoped_fd.h"
#include "base/status_macros.h"
#include "base/threads/file_thread.h"

namespace cadre::supervisor {
namespace {

constexpr int kPipeBytes = 1 << 20;

}  // namespace

WorkerPipe MakeWorkerPipe() {
  WorkerPipe made;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return made;
  made.read_end.Reset(ends[0]);
  made.write_end.Reset(ends[1]);
  fcntl(made.read_end.get(), F_SETFL, O_NONBLOCK);
  // The kernel refuses this if the user's pages for pipes are used up; the default size works as
  // well.
  fcntl(made.read_end.get(), F_SETPIPE_SZ, kPipeBytes);
  return made;
}

CapturedStream::CapturedStream(Options options, ScopedFd pipe, std::unique_ptr<LogFile> log)
    : options_(options), pipe_(std::move(pipe)), log_(std::move(log)) {}

bool CapturedStream::ReadOnce(FrameQueue& outbox) { return ReadUpTo(kMaxReadBytes, outbox) != 0; }

void CapturedStream::ReadAvailable(FrameQueue& outbox) {
  int available = 0;
  if (!open() || ioctl(pipe_.get(), FIONREAD, &available) != 0) return;
  while (available > 0) {
    const ssize_t n = ReadUpTo(static_cast<size_t>(available), outbox);
    if (n <= 0) return;
    available -= static_cast<int>(n);
  }
}

ssize_t CapturedStream::ReadUpTo(size_t limit, FrameQueue& outbox) {
  static char chunk[kMaxReadBytes];
  const ssize_t n = read(pipe_.get(), chunk, std::min(limit, sizeof(chunk)));
  if (n < 0) return errno == EAGAIN || errno == EINTR ? -1 : 0;
  if (n == 0) return 0;
  const absl::string_view bytes(chunk, static_cast<size_t>(n));
  if (options_.stream == kProgressStream) {
    ForwardLines(bytes, outbox);
    return n;
  }
  if (log_ != nullptr) log_->Append(bytes);
  AppendToTail(bytes);
  Forward(bytes, outbox);
  return n;
}

void CapturedStream::AppendToTail(absl::string_view bytes) {
  if (bytes.size() > kMaxTailBytes) {
    bytes.remove_prefix(bytes.size() - kMaxTailBytes);
    cut_ = true;
  }
  if (tail_.size() + bytes.size() > 2 * kMaxTailBytes) {
    tail_.erase(0, tail_.size() + bytes.size() - kMaxTailBytes);
    cut_ = true;
  }
  tail_.append(bytes.data(), bytes.size());
}

std::string CapturedStream::Tail() const {
  const size_t extra = tail_.size() - std::min(tail_.size(), kMaxTailBytes);
  const size_t newline = tail_.find('\n', extra);
  if ((!cut_ && extra == 0) || newline == std::string::npos || newline + 1 == tail_.size()) {
    return tail_.substr(extra);
  }
  return tail_.substr(newline + 1);
}

void CapturedStream::Forward(absl::string_view bytes, FrameQueue& outbox) {
  if (!options_.forward) return;
  OutputFrame frame;
  frame.group = options_.group;
  frame.stream = options_.stream;
  frame.dropped = dropped_;
  frame.bytes.assign(bytes.data(), bytes.size());
  if (outbox.SendOutput(frame)) {
    dropped_ = 0;
    return;
  }
  constexpr uint32_t kMost = ~0u;
  dropped_ =
      bytes.size() > kMost - dropped_ ? kMost : dropped_ + static_cast<uint32_t>(bytes.size());
}

void CapturedStream::ForwardLines(absl::string_view bytes, FrameQueue& outbox) {
  line_.append(bytes.data(), bytes.size());
  const size_t last = line_.rfind('\n');
  const size_t whole = last == std::string::npos ? 0 : last + 1;
  if (whole > 0) Forward(absl::string_view(line_).substr(0, whole), outbox);
  line_.erase(0, whole);
  if (line_.size() > kMaxProgressLineBytes) {
    Forward(line_, outbox);
    line_.clear();
  }
}

void CapturedStream::FlushRest(FrameQueue& outbox) {
  if (log_ != nullptr) log_->Finish();
  if (!line_.empty()) Forward(line_, outbox);
  line_.clear();
  if (dropped_ == 0) return;
  // A frame without bytes always fits the queue's bound, so the count is always sent.
  OutputFrame frame;
  frame.group = options_.group;
  frame.stream = options_.stream;
  frame.dropped = std::exchange(dropped_, 0);
  outbox.Send(frame);
}

namespace {

// After a gap this much room is required, to have one gap rather than many.
constexpr size_t kRoomToResume = 4 << 20;

}  // namespace

// The descriptor belongs to the file thread, which alone closes it.
struct LogFile::File {
  std::string path;
  NamedFile named;
  int fd = -1;
  uint64_t lost = 0;  // bytes dropped since the last successful write
  uint64_t lost_in_all = 0;
  bool removal_reported = false;
  int times_fd = -1;
  bool no_times = false;  // times cannot be recorded for this file
  int64_t noted_ms = 0;   // the last recorded time

  // The file that is written to.
  const std::string& Name() const { return named.path.empty() ? path : named.path; }
  // Returns 0, or the errno of the failed step; a full disk is reported, but is not a failure.
  int Open();
  absl::StatusOr<ScopedFd> OpenLog() const;
  absl::StatusOr<ScopedFd> OpenNamed();
  // Makes the log file's path lead to the file that the user named.
  void LinkToNamed() const;
  // Records that the following bytes came at `now_ms`.
  void NoteTime(int64_t now_ms);
  // Returns how much was written; if not all, errno is set.
  size_t Write(absl::string_view bytes) const;
  void Append(uint64_t skipped, absl::string_view bytes, int64_t now_ms);
  void MoveTo(const std::string& to, const NamedFile& named_there);
  void Finish();
  void Close();
};

absl::Status MakeDirectoriesFor(const std::string& path) {
  const size_t end = path.rfind('/');
  if (end == std::string::npos || end == 0) return absl::OkStatus();
  return MakeOwnDirectory(path.substr(0, end), "").status();
}

absl::StatusOr<ScopedFd> LogFile::File::OpenLog() const {
  RETURN_IF_ERROR(MakeDirectoriesFor(path));
  return OpenOwnFile(path, O_WRONLY | O_APPEND | O_CREAT);
}

absl::StatusOr<ScopedFd> LogFile::File::OpenNamed() {
  ASSIGN_OR_RETURN(ScopedFd file, OpenFileToWrite(named.path, O_WRONLY | O_APPEND | O_CREAT));
  struct stat info;
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    // A device has no offsets.
    no_times = true;
    return file;
  }
  const int64_t written_ms =
      int64_t{info.st_mtim.tv_sec} * 1000 + int64_t{info.st_mtim.tv_nsec} / 1'000'000;
  if (info.st_size > 0 && written_ms < named.empty_before_ms && ftruncate(file.get(), 0) != 0) {
    const int error = errno;
    const absl::Status status =
        absl::ErrnoToStatus(error, absl::StrCat("cannot empty ", named.path));
    errno = error;
    return status;
  }
  return file;
}

void LogFile::File::LinkToNamed() const {
  if (path.empty()) return;
  absl::Status status = MakeDirectoriesFor(path);
  // A file of an earlier process, or the link of an earlier agent.
  if (status.ok()) unlink(path.c_str());
  if (status.ok() && symlink(named.path.c_str(), path.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("cannot link ", path));
  }
  if (status.ok()) return;
  Warn(absl::StrCat(status.message(), "; the output is in ", named.path,
                    ", where 'cadre logs' does not find it"));
}

int LogFile::File::Open() {
  absl::StatusOr<ScopedFd> file = named.path.empty() ? OpenLog() : OpenNamed();
  if (file.ok()) {
    fd = file->Release();
    if (!named.path.empty()) LinkToNamed();
    return 0;
  }
  const int error = errno;
  if (!IsDiskFull(error)) {
    // The message names what is in the file's place and what to do, which the errno does not.
    if (error == EPERM || error == EINVAL) Warn(file.status().message());
    return error;
  }
  Warn(absl::StrCat("cannot make ", Name(), ": ", strerror(error),
                    "; the worker runs, but its output is not saved"));
  return 0;
}

size_t LogFile::File::Write(absl::string_view bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

void LogFile::File::NoteTime(int64_t now_ms) {
  // If the clock was set back, the next time is recorded at once.
  const bool noted = now_ms >= noted_ms && now_ms < noted_ms + kLogTimeStepMs;
  if (noted || no_times) return;
  noted_ms = now_ms;
  const off_t at = lseek(fd, 0, SEEK_END);
  // A FIFO has no offsets. Without a log directory there is no place for the times.
  no_times = at < 0 || path.empty();
  if (times_fd < 0 && !no_times) {
    times_fd = open(LogTimesPath(path).c_str(),
                    O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
    no_times = times_fd < 0;
  }
  if (no_times) return;
  const std::string line = absl::StrCat(now_ms, " ", at, "\n");
  // An error is ignored, because the log itself is complete without its times.
  [[maybe_unused]] const ssize_t n = write(times_fd, line.data(), line.size());
}

void LogFile::File::Append(uint64_t skipped, absl::string_view bytes, int64_t now_ms) {
  lost += skipped;
  lost_in_all += skipped;
  if (fd < 0) return;
  if (!bytes.empty()) NoteTime(now_ms);
  if (lost > 0) {
    // Once there is room again the gap is marked.
    const std::string mark = absl::StrCat("\n[", lost, " bytes are missing here]\n");
    if (Write(mark) == mark.size()) lost = 0;
  }
  const size_t done = lost == 0 ? Write(bytes) : 0;
  if (done == bytes.size()) return;
  if (lost_in_all == 0) {
    Warn(absl::StrCat("cannot write ", Name(), ": ", strerror(errno),
                      "; the worker continues, but its output there is incomplete"));
  }
  lost += bytes.size() - done;
  lost_in_all += bytes.size() - done;
}

void LogFile::File::MoveTo(const std::string& to, const NamedFile& named_there) {
  MakeDirectoriesFor(to).IgnoreError();
  const bool moved = named_there.path.empty() && fd >= 0 && access(to.c_str(), F_OK) != 0 &&
                     rename(path.c_str(), to.c_str()) == 0;
  if (moved) rename(LogTimesPath(path).c_str(), LogTimesPath(to).c_str());
  const int before = fd;
  const std::string from = std::exchange(path, to);
  if (moved) return;
  named = named_there;
  fd = -1;
  if (Open() == 0 && fd >= 0) {
    if (before >= 0) close(before);
    if (times_fd >= 0) close(times_fd);
    times_fd = -1;
    noted_ms = 0;
    return;
  }
  // If neither works the file stays at the old path.
  fd = before;
  path = from;
  named = {};
}

void LogFile::File::Finish() {
  if (const uint64_t count = std::exchange(lost_in_all, 0); count > 0) {
    Warn(absl::StrCat(Name(), " lacks ", count, " bytes of what the worker wrote"));
  }
  struct stat info;
  if (fd < 0 || removal_reported || fstat(fd, &info) != 0) return;
  if (info.st_nlink != 0 || info.st_size == 0) return;
  removal_reported = true;
  Warn(absl::StrCat(Name(), " was removed while the worker ran; the output in it is lost"));
}

void LogFile::File::Close() {
  for (const int open : {fd, times_fd}) {
    if (open >= 0) close(open);
  }
}

LogFile::LogFile(FileThread& files, std::string path, NamedFile named)
    : files_(files),
      path_(std::move(path)),
      shown_(named.path.empty() ? path_ : named.path),
      file_(std::make_shared<File>()) {
  file_->path = path_;
  file_->named = std::move(named);
}

LogFile::~LogFile() {
  Finish();
  files_.Post([file = file_] { file->Close(); });
}

void LogFile::Open() {
  files_.Post([file = file_] { file->Open(); });
}

int LogFile::OpenNow(File& file, std::string* step) {
  *step = file.named.path.empty() ? "open log" : absl::StrCat("output file ", file.named.path);
  return file.Open();
}

void LogFile::Append(absl::string_view bytes) {
  if (bytes.empty()) return;
  const size_t wanted = bytes.size() + (skipped_ > 0 ? kRoomToResume : 0);
  if (!files_.HasRoom(wanted) && files_.IsHung(MonoNow())) {
    if (skipped_ == 0) {
      Warn(absl::StrCat("cannot write ", shown_,
                        ": its file system does not answer; the worker continues, but its "
                        "output there is incomplete"));
    }
    skipped_ += bytes.size();
    return;
  }
  files_.Post([file = file_, skipped = std::exchange(skipped_, 0), text = std::string(bytes),
               now_ms = absl::ToUnixMillis(absl::Now())] { file->Append(skipped, text, now_ms); },
              bytes.size());
}

void LogFile::MoveTo(std::string path, NamedFile named) {
  if ((path.empty() && named.path.empty()) || path == path_) return;
  path_ = std::move(path);
  shown_ = named.path.empty() ? path_ : named.path;
  files_.Post([file = file_, to = path_, named = std::move(named)] { file->MoveTo(to, named); });
}

void LogFile::Finish() {
  files_.Post([file = file_, skipped = std::exchange(skipped_, 0)] {
    file->Append(skipped, "", 0);
    file->Finish();
  });
}

bool MakePipes(OutputChannels& channels, bool one_stream) {
  for (WorkerPipe* pipe :
       {&channels.standard_output, &channels.standard_error, &channels.progress}) {
    *pipe = MakeWorkerPipe();
    if (!pipe->read_end.ok()) return false;
  }
  if (!one_stream) return true;
  // The pipe for standard error ends at once.
  channels.standard_error.write_end.Reset(
      fcntl(channels.standard_output.write_end.get(), F_DUPFD_CLOEXEC, 0));
  return channels.standard_error.write_end.ok();
}

namespace {

constexpr size_t kMaxQueuedWarningBytes = 64 << 10;
constexpr size_t kMaxWarningBytes = 1024;

FileThread& Writer() {
  static auto* const writer = new FileThread({true, kMaxQueuedWarningBytes});
  return *writer;
}

}  // namespace

void Warn(absl::string_view line) {
  std::string text = absl::StrCat("cadre-supervisor: ", line.substr(0, kMaxWarningBytes), "\n");
  const size_t bytes = text.size();
  if (!Writer().HasRoom(bytes)) return;
  Writer().Post(
      [text = std::move(text)] {
        [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, text.data(), text.size());
      },
      bytes);
}

void FlushWarnings() { Writer().Drain(kDrainLimit); }

}  // namespace cadre::supervisor
