// What store operations answered, for callers that ask again because the answer was lost. Bounded:
// the oldest are forgotten. Pure; one thread.
#ifndef CADRE_RENDEZVOUS_KEYSPACE_ANSWERS_H_
#define CADRE_RENDEZVOUS_KEYSPACE_ANSWERS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/store.pb.h"

namespace cadre {

// Answers remembered: of one client, and of all.
constexpr size_t kMaxAnswersPerClient = 1024;
constexpr size_t kMaxAnswers = 65536;
constexpr size_t kMaxAnswerBytes = size_t{64} << 20;

class Answers {
 public:
  // nullptr: none, or forgotten.
  const v1::StoreReply* Find(uint64_t client, uint64_t request_id) const;
  void Remember(const v1::StoreReply& reply);
  size_t size() const { return order_.size(); }
  // Oldest first. Remembering them in this order gives the same memory.
  std::vector<const v1::StoreReply*> All() const;

 private:
  using RequestKey = std::pair<uint64_t, uint64_t>;  // client, request id
  // By request id, which mostly grows.
  using OfClient = std::deque<v1::StoreReply>;

  void Forget(const RequestKey& request);

  // Never gone through in its order, which is nobody's.
  absl::flat_hash_map<uint64_t, OfClient> by_client_;
  std::deque<RequestKey> order_;
  size_t bytes_ = 0;
};

}  // namespace cadre

#endif  // CADRE_RENDEZVOUS_KEYSPACE_ANSWERS_H_
