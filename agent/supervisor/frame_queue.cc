#include "agent/supervisor/frame_queue.h"

#include <errno.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/clock.h"

namespace cadre::supervisor {
namespace {

// Above this much, queued output is written at once instead of at the end of the loop's turn.
constexpr size_t kEagerBytes = 256 << 10;
// An empty queue releases its memory above this size.
constexpr size_t kKeptCapacity = 1 << 20;

}  // namespace

void FrameQueue::Send(const Frame& frame) {
  if (broken_) return;
  if (empty()) progress_at_ = MonoNow();
  queue_ += EncodeFrame(frame, version_);
}

bool FrameQueue::SendOutput(const OutputFrame& frame) {
  if (queued() + frame.bytes.size() > kMaxQueuedBytes) Flush();
  if (queued() + frame.bytes.size() > kMaxQueuedBytes) return false;
  Send(frame);
  if (queued() > kEagerBytes) Flush();
  return true;
}

void FrameQueue::Detach() {
  fd_ = -1;
  broken_ = false;
  queue_.clear();
  used_ = 0;
}

void FrameQueue::Attach(int fd, const std::string& first) {
  CADRE_CHECK(fd_ < 0, "frames for one agent would go to another");
  fd_ = fd;
  queue_.replace(0, used_, first);
  used_ = 0;
}

bool FrameQueue::Flush() {
  if (fd_ < 0) return true;
  while (!broken_ && !empty()) {
    const ssize_t n = send(fd_, queue_.data() + used_, queued(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n < 0) broken_ = true;
    if (n <= 0) continue;
    used_ += static_cast<size_t>(n);
    progress_at_ = MonoNow();
  }
  if (broken_ || empty()) {
    queue_.clear();
    used_ = 0;
    if (queue_.capacity() > kKeptCapacity) queue_.shrink_to_fit();
  } else if (used_ > queue_.size() / 2) {
    queue_.erase(0, used_);
    used_ = 0;
  }
  return !broken_;
}

}  // namespace cadre::supervisor
