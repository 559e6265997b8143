// The queue of messages to the server, with limits. Pure; one thread at a time.
#ifndef CADRE_AGENT_LINK_LINK_QUEUE_H_
#define CADRE_AGENT_LINK_LINK_QUEUE_H_

#include <cstddef>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "agent/core/server_session.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

// The most that a NodeMessage adds to its body: a job's name has up to 63 bytes, and the rest is
// numbers.
inline constexpr size_t kNodeMessageHeadBytesMax = 128;
// Limits of the queue: a server that does not read is given up. They leave room for all pending
// store operations beside everything else; otherwise each new stream would end like the one before.
inline constexpr size_t kLinkQueueMessagesMax = 65536 + kMaxPendingStoreCalls;
inline constexpr size_t kLinkQueueBytesMax =
    (16 << 20) + kMaxPendingStoreBytes + kMaxPendingStoreCalls * kNodeMessageHeadBytesMax;

class LinkQueue {
 public:
  // INVALID_ARGUMENT: the message is over the size limit and is not a store request.
  // RESOURCE_EXHAUSTED: the queue is full.
  absl::Status Add(v1::NodeMessage message);
  // Removes store requests over the size limit from the front and returns them without their
  // operations; the client is sent an error, and the server gets nothing.
  std::vector<v1::NodeMessage> TakeRefused();
  // Removes the next message and, because a write costs more than a message, those behind it. Call
  // after TakeRefused; must not be empty.
  v1::NodeMessage TakeBundle();
  bool empty() const { return waiting_.empty(); }

 private:
  struct Outgoing {
    v1::NodeMessage message;
    size_t bytes = 0;
    bool refused = false;
  };
  Outgoing TakeFront();

  std::deque<Outgoing> waiting_;
  size_t bytes_ = 0;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LINK_LINK_QUEUE_H_
