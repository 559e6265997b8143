// Frames on their way to the agent. What workers print waits in their pipes while the agent reads,
// and is bounded and may be dropped where it does not, so that one that stands still, or is gone,
// never stalls a worker for long; all other frames are kept. Supervisor's thread.
#ifndef CADRE_AGENT_SUPERVISOR_OUTBOX_H_
#define CADRE_AGENT_SUPERVISOR_OUTBOX_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "agent/supervisor/frames.h"
#include "base/time.h"

namespace cadre::supervisor {

// With so much in the queue workers wait, as long as the agent takes something of it within this
// time.
inline constexpr size_t kEnoughQueuedBytes = 1 << 20;
inline constexpr absl::Duration kAgentStandsStill = absl::Seconds(10);
// Output that does not fit in this much queue is dropped and counted.
inline constexpr size_t kMaxQueuedBytes = 16 << 20;

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
  // Workers wait until the agent has taken some of what is queued, for as long as this is so.
  bool HasEnough(MonoTime now) const {
    return fd_ >= 0 && queued() > kEnoughQueuedBytes && now < GivesUpAt();
  }
  // When the agent will be taken to stand still, unless it takes something before.
  MonoTime GivesUpAt() const { return taken_at_ + kAgentStandsStill; }

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
  // When it took something last, or was given something after it had taken all.
  MonoTime taken_at_;
};

}  // namespace cadre::supervisor

#endif  // CADRE_AGENT_SUPERVISOR_OUTBOX_H_
