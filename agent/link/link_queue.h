// What waits to be written to the server, within limits. Pure; one thread at a time.
#ifndef CADRE_AGENT_LINK_LINK_QUEUE_H_
#define CADRE_AGENT_LINK_LINK_QUEUE_H_

#include <cstddef>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "proto/rendezvous.pb.h"

namespace cadre::agent {

// What may wait to be written: a server that does not read is given up.
inline constexpr size_t kLinkQueueMessagesMax = 65536;
inline constexpr size_t kLinkQueueBytesMax = 16 << 20;

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
