#include "rendezvous/keyspace/stored.h"

#include <utility>

namespace cadre::keyspace {
namespace {

void Write(std::string key, std::string value, std::map<std::string, std::string>* keys,
           size_t* bytes) {
  const auto [at, inserted] = keys->try_emplace(std::move(key));
  *bytes += (inserted ? at->first.size() : 0) + value.size();
  *bytes -= at->second.size();
  at->second = std::move(value);
}

}  // namespace

void Stored::Apply(Change change) {
  if (auto* written = std::get_if<KeyWritten>(&change.what)) {
    Write(std::move(written->key), std::move(written->value), &keys, &bytes);
  } else if (auto* published = std::get_if<IdPublished>(&change.what)) {
    Write(std::move(published->communicator), std::move(published->id), &communicator_ids, &bytes);
  } else if (const auto* erased = std::get_if<KeyErased>(&change.what)) {
    const auto found = keys.find(erased->key);
    if (found != keys.end()) {
      bytes -= found->first.size() + found->second.size();
      keys.erase(found);
    }
  }
  for (Reply& reply : change.answers) answers.Remember(std::move(reply));
}

}  // namespace cadre::keyspace
