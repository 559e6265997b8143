// Earlier answers of store operations, for callers that ask again because the answer was lost.
// Bounded: the oldest are forgotten. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_KEYSPACE_ANSWERS_H_
#define CADRE_RENDEZVOUS_KEYSPACE_ANSWERS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "rendezvous/keyspace/request.h"

namespace cadre::keyspace {

class Answers {
 public:
  // nullptr: none, or forgotten.
  const Reply* Find(uint64_t client, uint64_t id) const;
  void Remember(Reply reply);
  size_t size() const { return order_.size(); }
  // Oldest first. Remembering them in this order gives the same memory.
  std::vector<const Reply*> All() const;

 private:
  using RequestKey = std::pair<uint64_t, uint64_t>;  // client, request id
  // By request id, which mostly grows.
  using OfClient = std::deque<Reply>;

  void Forget(const RequestKey& request);

  // Never gone through in its order, which is nobody's.
  absl::flat_hash_map<uint64_t, OfClient> by_client_;
  std::deque<RequestKey> order_;
  size_t bytes_ = 0;
};

}  // namespace cadre::keyspace

#endif  // CADRE_RENDEZVOUS_KEYSPACE_ANSWERS_H_
