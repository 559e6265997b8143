// Store operations of this node's workers on their way to the server and back: which connections
// wait for which answer.
#ifndef CADRE_AGENT_LOCAL_STORE_CALLS_H_
#define CADRE_AGENT_LOCAL_STORE_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "proto/store.pb.h"
#include "rpc/worker_protocol.h"

namespace cadre::agent {

// Operations of all workers that may wait for an answer at once; one more is refused.
inline constexpr size_t kMaxStoreCalls = 65536;

// One thread.
class StoreCalls {
 public:
  // Sends a reply on a connection.
  using Send = std::function<void(uint64_t connection, const rpc::WorkerReply&)>;
  explicit StoreCalls(Send send) : send_(std::move(send)) {}

  // The request for the server; nullopt when it was refused, with the answer given.
  std::optional<v1::StoreRequest> Take(uint64_t connection, uint64_t id, rpc::Store call);
  // Goes to everyone who waits for this client and request id.
  void Answer(const v1::StoreReply& reply);
  // Nobody waits there any more.
  void Forget(uint64_t connection);

 private:
  using Key = std::pair<uint64_t, uint64_t>;  // client, request id

  const Send send_;
  // A request that is repeated on another connection waits beside the first one.
  std::multimap<Key, uint64_t> waiting_;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_LOCAL_STORE_CALLS_H_
