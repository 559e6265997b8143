// Store operations of this node's workers that the server has not answered yet. Pure; one thread.
#ifndef CADRE_AGENT_CORE_STORE_CALLS_H_
#define CADRE_AGENT_CORE_STORE_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/store.pb.h"

namespace cadre::agent {

// Operations that may wait at once, and the bytes they may hold together. After a reconnection all
// of them go to the link in one moment, which has room for that (LinkQueue).
inline constexpr size_t kMaxPendingStoreCalls = 65536;
inline constexpr size_t kMaxPendingStoreBytes = 64 << 20;

class PendingStoreCalls {
 public:
  // False with OK: the same request waits already, so it need not be sent again.
  // RESOURCE_EXHAUSTED: too many wait.
  absl::StatusOr<bool> Add(const v1::StoreRequest& request);
  // Forgets the request that `reply` answers; false when there is none.
  bool Answered(const v1::StoreReply& reply);
  // Ends all of them with this status.
  std::vector<v1::StoreReply> FailAll(const absl::Status& status);
  // In the order of (client, request_id): the order in which each client asked.
  std::vector<v1::StoreRequest> All() const;

 private:
  using Key = std::pair<uint64_t, uint64_t>;  // client, request_id
  std::map<Key, v1::StoreRequest> waiting_;
  size_t bytes_ = 0;
};

}  // namespace cadre::agent

#endif  // CADRE_AGENT_CORE_STORE_CALLS_H_
