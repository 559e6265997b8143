// StoreContent: the content of a store and how it changes, with the replies to the operations that
// changed it (ReplyCache). Plain values; one thread.
#ifndef CADRE_RENDEZVOUS_KEYSPACE_STORE_CONTENT_H_
#define CADRE_RENDEZVOUS_KEYSPACE_STORE_CONTENT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "rendezvous/keyspace/store_request.h"

namespace cadre::keyspace {

// Earlier replies of store operations, kept for clients that repeat a request because the reply was
// lost. Bounded: the oldest reply is dropped, or the client's own oldest if that client has too
// many. What is dropped depends only on All(), so a server that starts from a snapshot drops the
// same.
class ReplyCache {
 public:
  ReplyCache() = default;
  // Only moves are allowed: the index points into the list.
  ReplyCache(ReplyCache&&) = default;
  ReplyCache& operator=(ReplyCache&&) = default;

  // Returns nullptr if there is no such reply or it was dropped.
  const Reply* Find(uint64_t client, uint64_t id) const;
  void Remember(Reply reply);
  size_t size() const { return replies_.size(); }
  size_t bytes() const { return bytes_; }
  // Returns all replies, oldest first. Passing them to Remember() in this order restores this
  // object.
  std::vector<const Reply*> All() const;

 private:
  using Replies = std::list<Reply>;
  // Sorted by request id, which mostly grows.
  using OfClient = std::deque<Replies::iterator>;

  void Forget(Replies::iterator reply);

  // Oldest first.
  Replies replies_;
  // Never iterated, since the order of a hash map is not deterministic.
  absl::flat_hash_map<uint64_t, OfClient> by_client_;
  size_t bytes_ = 0;
};

struct KeyWritten {
  std::string key;
  std::string value;
};
struct KeyErased {
  std::string key;
};
struct IdPublished {
  std::string communicator;
  std::string id;
};
// A barrier has completed: only replies have to be stored.
struct Answered {};

struct Change {
  std::variant<Answered, KeyWritten, KeyErased, IdPublished> what;
  // The replies that belong to it, kept for clients that repeat a request.
  std::vector<Reply> answers;
};

struct StoreContent {
  std::map<std::string, std::string> keys;
  std::map<std::string, std::string> communicator_ids;
  // The bytes of the names and values in both maps.
  size_t bytes = 0;
  ReplyCache answers;

  // The bytes that are stored, with those of remembered answers.
  size_t all_bytes() const { return bytes + answers.bytes(); }
  void Apply(Change change);
};

}  // namespace cadre::keyspace

#endif  // CADRE_RENDEZVOUS_KEYSPACE_STORE_CONTENT_H_
