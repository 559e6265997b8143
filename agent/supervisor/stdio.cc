#include "agent/supervisor/stdio.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre::supervisor {
namespace {

constexpr int kPipeBytes = 1 << 20;
constexpr size_t kChunkBytes = 256 << 10;

}  // namespace

WorkerPipe MakeWorkerPipe() {
  WorkerPipe made;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return made;
  made.read_end.Reset(ends[0]);
  made.write_end.Reset(ends[1]);
  fcntl(made.read_end.get(), F_SETFL, O_NONBLOCK);
  // Refused where the user's pages for pipes are used up; the default size works as well.
  fcntl(made.read_end.get(), F_SETPIPE_SZ, kPipeBytes);
  return made;
}

void Complain(absl::string_view line) {
  pollfd ready = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return;
  const std::string text = absl::StrCat("cadre-supervisor: ", line.substr(0, 1024), "\n");
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, text.data(), text.size());
}

bool MakeDirectoriesFor(const std::string& path) {
  const size_t end = path.rfind('/');
  if (end == std::string::npos || end == 0) return true;
  const std::string folder = path.substr(0, end);
  if (mkdir(folder.c_str(), 0777) == 0 || errno == EEXIST) return true;
  if (errno != ENOENT || !MakeDirectoriesFor(folder)) return false;
  return mkdir(folder.c_str(), 0777) == 0 || errno == EEXIST;
}

CapturedStream::CapturedStream(Options options, ScopedFd pipe, ScopedFd file)
    : options_(std::move(options)), pipe_(std::move(pipe)), file_(std::move(file)) {}

void CapturedStream::Become(Options options, ScopedFd file) {
  options_ = std::move(options);
  if (file.ok()) file_ = std::move(file);
}

bool CapturedStream::ReadOnce(Outbox& outbox) { return ReadUpTo(kChunkBytes, outbox) != 0; }

void CapturedStream::ReadAvailable(Outbox& outbox) {
  int available = 0;
  if (!open() || ioctl(pipe_.get(), FIONREAD, &available) != 0) return;
  while (available > 0) {
    const ssize_t n = ReadUpTo(static_cast<size_t>(available), outbox);
    if (n <= 0) return;
    available -= static_cast<int>(n);
  }
}

ssize_t CapturedStream::ReadUpTo(size_t limit, Outbox& outbox) {
  static char chunk[kChunkBytes];
  const ssize_t n = read(pipe_.get(), chunk, std::min(limit, sizeof(chunk)));
  if (n < 0) return errno == EAGAIN || errno == EINTR ? -1 : 0;
  if (n == 0) return 0;
  const absl::string_view bytes(chunk, static_cast<size_t>(n));
  if (options_.stream == kProgressStream) {
    ForwardLines(bytes, outbox);
    return n;
  }
  WriteToFile(bytes);
  Keep(bytes);
  Forward(bytes, outbox);
  return n;
}

size_t CapturedStream::Append(absl::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = write(file_.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

void CapturedStream::WriteToFile(absl::string_view bytes) {
  if (!file_.ok()) return;
  if (file_lost_ > 0) {
    // Where there is room again the gap is marked.
    const std::string mark = absl::StrCat("\n[", file_lost_, " bytes are missing here]\n");
    if (Append(mark) == mark.size()) file_lost_ = 0;
  }
  const size_t done = file_lost_ == 0 ? Append(bytes) : 0;
  if (done == bytes.size()) return;
  if (file_lost_in_all_ == 0) {
    Complain(absl::StrCat("cannot write ", options_.path, ": ", strerror(errno),
                          "; the worker goes on, its output there is incomplete"));
  }
  file_lost_ += bytes.size() - done;
  file_lost_in_all_ += bytes.size() - done;
}

void CapturedStream::Keep(absl::string_view bytes) {
  if (bytes.size() > kMaxTailBytes) {
    bytes.remove_prefix(bytes.size() - kMaxTailBytes);
    cut_ = true;
  }
  if (tail_.size() + bytes.size() > kMaxTailBytes) {
    tail_.erase(0, tail_.size() + bytes.size() - kMaxTailBytes);
    cut_ = true;
  }
  tail_.append(bytes.data(), bytes.size());
}

std::string CapturedStream::Tail() const {
  const size_t newline = tail_.find('\n');
  if (!cut_ || newline == std::string::npos || newline + 1 == tail_.size()) return tail_;
  return tail_.substr(newline + 1);
}

void CapturedStream::Forward(absl::string_view bytes, Outbox& outbox) {
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

void CapturedStream::ForwardLines(absl::string_view bytes, Outbox& outbox) {
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

void CapturedStream::FlushRest(Outbox& outbox) {
  if (const uint64_t lost = std::exchange(file_lost_in_all_, 0); lost > 0) {
    Complain(absl::StrCat(options_.path, " lacks ", lost, " bytes of what the worker wrote"));
  }
  struct stat info;
  if (file_.ok() && !said_removed_ && fstat(file_.get(), &info) == 0 && info.st_nlink == 0 &&
      info.st_size > 0) {
    said_removed_ = true;
    Complain(absl::StrCat(options_.path, " was removed while the worker ran, and what it wrote ",
                          "there with it"));
  }
  if (!line_.empty()) Forward(line_, outbox);
  line_.clear();
  if (dropped_ == 0) return;
  // A frame without bytes fits the queue's bound always, so the count arrives.
  OutputFrame frame;
  frame.group = options_.group;
  frame.stream = options_.stream;
  frame.dropped = std::exchange(dropped_, 0);
  outbox.Send(frame);
}

}  // namespace cadre::supervisor
