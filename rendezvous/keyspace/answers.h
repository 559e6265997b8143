// Earlier answers of store operations, for callers that ask again because the answer was lost.
// Bounded: the oldest are forgotten, of a client that has too many its own. What is forgotten
// follows from All alone, so that a server that starts with a snapshot forgets the same. Pure; one
// thread.
#ifndef CADRE_RENDEZVOUS_KEYSPACE_ANSWERS_H_
#define CADRE_RENDEZVOUS_KEYSPACE_ANSWERS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "rendezvous/keyspace/request.h"

namespace cadre::keyspace {

class Answers {
 public:
  Answers() = default;
  // By moves: the index points into the list.
  Answers(Answers&&) = default;
  Answers& operator=(Answers&&) = default;

  // nullptr: none, or forgotten.
  const Reply* Find(uint64_t client, uint64_t id) const;
  void Remember(Reply reply);
  size_t size() const { return replies_.size(); }
  size_t bytes() const { return bytes_; }
  // Oldest first. Remembering them in this order gives the same memory.
  std::vector<const Reply*> All() const;

 private:
  using Replies = std::list<Reply>;
  // By request id, which mostly grows.
  using OfClient = std::deque<Replies::iterator>;

  void Forget(Replies::iterator reply);

  // Oldest first.
  Replies replies_;
  // Never gone through in its order, which is nobody's.
  absl::flat_hash_map<uint64_t, OfClient> by_client_;
  size_t bytes_ = 0;
};

}  // namespace cadre::keyspace

#endif  // CADRE_RENDEZVOUS_KEYSPACE_ANSWERS_H_
