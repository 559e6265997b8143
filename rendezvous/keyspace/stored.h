// What a store keeps, and how it changes. Plain values; one thread.
#ifndef CADRE_RENDEZVOUS_KEYSPACE_STORED_H_
#define CADRE_RENDEZVOUS_KEYSPACE_STORED_H_

#include <cstddef>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/keyspace/answers.h"
#include "rendezvous/keyspace/request.h"

namespace cadre::keyspace {

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
// A barrier let its ranks through: only answers are to be kept.
struct Answered {};

struct Change {
  std::variant<Answered, KeyWritten, KeyErased, IdPublished> what;
  // What was answered with it, for callers that ask again.
  std::vector<Reply> answers;
};

struct Stored {
  std::map<std::string, std::string> keys;
  std::map<std::string, std::string> communicator_ids;
  // Of both, names and values.
  size_t bytes = 0;
  Answers answers;

  // With the answers.
  size_t all_bytes() const { return bytes + answers.bytes(); }
  void Apply(Change change);
};

}  // namespace cadre::keyspace

#endif  // CADRE_RENDEZVOUS_KEYSPACE_STORED_H_
