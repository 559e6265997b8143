// Frames on their way to the agent. What workers print is bounded and may be dropped, so that an
// agent that does not read, or is gone, never stalls a worker; all other frames are kept.
// Supervisor's thread.
#ifndef CADRE_AGENT_SUPERVISOR_OUTBOX_H_
#define CADRE_AGENT_SUPERVISOR_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "agent/supervisor/frames.h"

namespace cadre::supervisor {

// Output that does not fit in this much queue is dropped and counted.
inline constexpr size_t kMaxQueuedBytes = 8 << 20;

class Outbox {
 public:
  // `fd`: a non-blocking stream socket, not owned. `version`: of the frames (frames.h).
  explicit Outbox(int fd, uint32_t version = kFramesVersion) : fd_(fd), version_(version) {}

  void Send(const Frame& frame);
  // False, and nothing queued: the agent is too far behind.
  bool SendOutput(const OutputFrame& frame);
  // Writes what the socket takes. False: the peer is gone.
  bool Flush();
  bool empty() const { return used_ == queue_.size(); }

  // The peer is gone: what waited for it is forgotten, and what comes is kept for the next one.
  void Detach();
  // Goes on with this peer: `first`, then what was kept.
  void Attach(int fd, const std::string& first);

 private:
  size_t queued() const { return queue_.size() - used_; }

  int fd_;  // -1: detached
  const uint32_t version_;
  bool broken_ = false;
  std::string queue_;
  size_t used_ = 0;
};

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_OUTBOX_H_
