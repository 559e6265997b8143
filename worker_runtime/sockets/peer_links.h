// A small TCP connection between every two ranks, beside those that carry a communicator's data:
// what ranks say there is never stuck behind data, and its end tells that a process has ended.
#ifndef CADRE_WORKER_RUNTIME_SOCKETS_PEER_LINKS_H_
#define CADRE_WORKER_RUNTIME_SOCKETS_PEER_LINKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/scoped_fd.h"
#include "worker_runtime/wire/connection.h"

namespace cadre::sockets {

struct PeerMessage {
  enum class Kind : uint32_t {
    kCall = 1,  // what this rank is in
    kQuestion,  // the same, and: what are you in?
    kLeave,     // this rank aborted its part
    kFailure    // this rank gave up, for `code` and `text`
  };
  Kind kind = Kind::kCall;
  int32_t code = 0;
  uint64_t call = 0;
  uint64_t finished = 0;
  char text[488] = {};
};
static_assert(sizeof(PeerMessage) == 512, "as it goes over the wire");

enum class LinkEnd {
  kClosed,      // by its process, or with that
  kOutOfReach,  // it is not its process that ended the connection
  kAltered      // what came is not what the peer sent: it was altered on its way
};

class PeerLinks {
 public:
  // By rank; none for this one.
  explicit PeerLinks(std::vector<wire::Connection> connections);
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  // Never waits. Any thread. A message is lost when the last one has not left yet (the peer is
  // stopped); a last word is kept until it can leave.
  void Send(int peer, const PeerMessage& message, bool is_last = false);

  struct Listener {
    std::function<void(int peer, const PeerMessage& message)> hear;
    // Once for each peer.
    std::function<void(int peer, LinkEnd end)> hear_end;
  };
  // Waits until somebody said something, Wake() was called or `timeout` has passed. One thread.
  void Poll(absl::Duration timeout, const Listener& listener);
  // Any thread.
  void Wake();

 private:
  struct Link {
    wire::Connection connection;
    std::string incoming;  // by the thread that polls
    std::string outgoing;
  };

  void Flush(Link& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // 0, or why the connection has ended, as errno says it.
  int Receive(int peer, const Listener& listener);

  const ScopedFd wake_;  // an eventfd
  absl::Mutex mutex_;
  std::vector<Link> links_;  // connections end only in Poll()
};

}  // namespace cadre::sockets

#endif  // CADRE_WORKER_RUNTIME_SOCKETS_PEER_LINKS_H_
