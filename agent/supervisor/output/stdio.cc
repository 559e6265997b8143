#include "agent/supervisor/output/stdio.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

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
  // Refused where the user's pages for pipes are used up; the default size works as well.
  fcntl(made.read_end.get(), F_SETPIPE_SZ, kPipeBytes);
  return made;
}

CapturedStream::CapturedStream(Options options, ScopedFd pipe, std::unique_ptr<LogFile> log)
    : options_(options), pipe_(std::move(pipe)), log_(std::move(log)) {}

bool CapturedStream::ReadOnce(Outbox& outbox) { return ReadUpTo(kMaxReadBytes, outbox) != 0; }

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
  Keep(bytes);
  Forward(bytes, outbox);
  return n;
}

void CapturedStream::Keep(absl::string_view bytes) {
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
  if (log_ != nullptr) log_->Finish();
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
