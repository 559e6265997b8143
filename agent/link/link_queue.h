// What waits to be written to the server, within limits. Pure; one thread at a time.
#ifndef CADRE_AGENT_LINK_LINK_QUEUE_H_
#define CADRE_AGENT_LINK_LINK_QUEUE_H_

#include <cstddef>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "agent/core/store_calls.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

// What a NodeMessage has around its body, at most: a job's name has 63 bytes, and the rest is
// numbers.
inline constexpr size_t kNodeMessageHeadBytesMax = 128;
// What may wait to be written: a server that does not read is given up. All store operations that
// may be unanswered fit beside everything else, or each new stream would end as the one before.
inline constexpr size_t kLinkQueueMessagesMax = 65536 + kMaxPendingStoreCalls;
inline constexpr size_t kLinkQueueBytesMax =
    (16 << 20) + kMaxPendingStoreBytes + kMaxPendingStoreCalls * kNodeMessageHeadBytesMax;

class LinkQueue {
 public:
  // INVALID_ARGUMENT: the message is over the size limit, and no store request.
  // RESOURCE_EXHAUSTED: too much waits.
  absl::Status Add(v1::NodeMessage message);
  // Store requests over the size limit that come next, without their operations: whoever asked is
  // told so instead of the server.
  std::vector<v1::NodeMessage> TakeRefused();
  // The next message and, because a write costs more than a message, those behind it. After
  // TakeRefused, and not empty.
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
