#include "rendezvous/keyspace/stored.h"

namespace cadre::keyspace {
namespace {

void Write(const std::string& key, const std::string& value,
           std::map<std::string, std::string>* keys, size_t* bytes) {
  const auto [at, inserted] = keys->try_emplace(key, value);
  if (inserted) {
    *bytes += key.size() + value.size();
  } else {
    *bytes += value.size();
    *bytes -= at->second.size();
    at->second = value;
  }
}

}  // namespace

void Stored::Apply(const Change& change) {
  if (const auto* written = std::get_if<KeyWritten>(&change.what)) {
    Write(written->key, written->value, &keys, &bytes);
  } else if (const auto* published = std::get_if<IdPublished>(&change.what)) {
    Write(published->communicator, published->id, &communicator_ids, &bytes);
  } else if (const auto* erased = std::get_if<KeyErased>(&change.what)) {
    const auto found = keys.find(erased->key);
    if (found != keys.end()) {
      bytes -= found->first.size() + found->second.size();
      keys.erase(found);
    }
  }
  for (const Reply& reply : change.answers) answers.Remember(reply);
}

}  // namespace cadre::keyspace
