// The queue of frames to the agent. While the agent reads, workers' output waits in their pipes. If
// it does not, output is queued up to a bound and then dropped, so that a stalled or dead agent
// never blocks a worker for long; all other frames are kept. Supervisor's thread.
#ifndef CADRE_AGENT_SUPERVISOR_FRAME_QUEUE_H_
#define CADRE_AGENT_SUPERVISOR_FRAME_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "agent/supervisor/frames.h"
#include "base/time.h"

namespace cadre::supervisor {

// With more than kBackedUpBytes queued workers wait, as long as the agent reads something
// within kAgentStallTimeout.
inline constexpr size_t kBackedUpBytes = 1 << 20;
inline constexpr absl::Duration kAgentStallTimeout = absl::Seconds(10);
// Output that does not fit in this much queue is dropped and counted.
inline constexpr size_t kMaxQueuedBytes = 16 << 20;

class FrameQueue {
 public:
  // `fd`: a non-blocking stream socket, not owned. `version`: of the frames (frames.h).
  explicit FrameQueue(int fd, uint32_t version = kFramesVersion) : fd_(fd), version_(version) {}

  void Send(const Frame& frame);
  // Returns false, and queues nothing, if the agent is too far behind.
  bool SendOutput(const OutputFrame& frame);
  // Writes what the socket accepts. Returns false if the peer is gone.
  bool Flush();
  bool empty() const { return used_ == queue_.size(); }
  // True while workers must wait until the agent has read some of the queue.
  bool IsBackedUp(MonoTime now) const {
    return fd_ >= 0 && queued() > kBackedUpBytes && now < StalledAt();
  }
  // When the agent counts as stalled, unless it reads something before.
  MonoTime StalledAt() const { return progress_at_ + kAgentStallTimeout; }

  // The peer is gone: its queued output is dropped, and new frames are kept for the next peer.
  void Detach();
  // Continues with this peer: sends `first`, then what was kept.
  void Attach(int fd, const std::string& first);

 private:
  size_t queued() const { return queue_.size() - used_; }

  int fd_;  // -1: detached
  const uint32_t version_;
  bool broken_ = false;
  std::string queue_;
  size_t used_ = 0;
  // When the peer last read something, or the queue last became non-empty.
  MonoTime progress_at_;
};

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_FRAME_QUEUE_H_
