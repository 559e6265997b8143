// A small TCP connection between every two ranks, beside those that carry a communicator's data:
// what ranks say there is never stuck behind data, and its end tells that a process has ended.
#ifndef CADRE_WORKER_RUNTIME_GLOO_PEER_LINKS_H_
#define CADRE_WORKER_RUNTIME_GLOO_PEER_LINKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/time.h"

namespace cadre::gloo {

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

class PeerLinks {
 public:
  // Gives `own`, `bytes` long, to all ranks; `all` gets everybody's in rank order.
  using AllGather = std::function<absl::Status(void* own, void* all, size_t bytes)>;

  // All ranks call it. Listens on `address`, this node's for the others. Fails as `all_gather`
  // does; DEADLINE_EXCEEDED and UNAVAILABLE name the rank that could not be reached.
  static absl::StatusOr<std::unique_ptr<PeerLinks>> Connect(int rank, int size,
                                                            const std::string& address,
                                                            const AllGather& all_gather,
                                                            MonoTime deadline);
  ~PeerLinks();
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  // Never waits. Any thread. A message is lost when the last one has not left yet (the peer is
  // stopped); a last word is kept until it can leave.
  void Send(int peer, const PeerMessage& message, bool is_last = false);

  struct Listener {
    std::function<void(int peer, const PeerMessage& message)> hear;
    std::function<void(int peer)> hear_end;  // once for each peer
  };
  // Waits until somebody said something, Wake() was called or `timeout` has passed. One thread.
  void Poll(absl::Duration timeout, const Listener& listener);
  // Any thread.
  void Wake();

 private:
  struct Link {
    int fd = -1;
    std::string incoming;  // by the thread that polls
    std::string outgoing;
  };

  PeerLinks(int rank, int size);
  void Flush(Link& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False: the connection has ended.
  bool Receive(int peer, const Listener& listener);

  const int rank_;
  const int wake_;  // an eventfd
  absl::Mutex mutex_;
  std::vector<Link> links_;  // descriptors change only while connecting and in Poll()
};

}  // namespace cadre::gloo

#endif  // CADRE_WORKER_RUNTIME_GLOO_PEER_LINKS_H_
