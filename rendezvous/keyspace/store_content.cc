#include "rendezvous/keyspace/store_content.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "rendezvous/keyspace/store_limits.h"

namespace cadre::keyspace {
namespace {

void Write(std::string key, std::string value, std::map<std::string, std::string>* keys,
           size_t* bytes) {
  const auto [at, inserted] = keys->try_emplace(std::move(key));
  *bytes += (inserted ? at->first.size() : 0) + value.size();
  CADRE_CHECK(*bytes >= at->second.size(), *bytes, " bytes");
  *bytes -= at->second.size();
  at->second = std::move(value);
}

}  // namespace

void StoreContent::Apply(Change change) {
  if (auto* written = std::get_if<KeyWritten>(&change.what)) {
    Write(std::move(written->key), std::move(written->value), &keys, &bytes);
  } else if (auto* published = std::get_if<IdPublished>(&change.what)) {
    Write(std::move(published->communicator), std::move(published->id), &communicator_ids, &bytes);
  } else if (const auto* erased = std::get_if<KeyErased>(&change.what)) {
    const auto found = keys.find(erased->key);
    if (found != keys.end()) {
      CADRE_CHECK(bytes >= found->first.size() + found->second.size(), bytes, " bytes");
      bytes -= found->first.size() + found->second.size();
      keys.erase(found);
    }
  }
  for (Reply& reply : change.answers) answers.Remember(std::move(reply));
}

namespace {

size_t BytesOf(const Reply& reply) {
  return sizeof(Reply) + reply.message.size() + reply.value.size();
}

// Returns where the reply to this request is, or would be inserted.
template <typename OfClient>
auto PlaceOf(OfClient& replies, uint64_t request_id) {
  if (replies.empty() || replies.back()->id < request_id) return replies.end();
  // Forget() drops the oldest reply, which is mostly the client's first.
  if (replies.front()->id >= request_id) return replies.begin();
  return std::lower_bound(replies.begin(), replies.end(), request_id,
                          [](const auto& reply, uint64_t id) { return reply->id < id; });
}

}  // namespace

const Reply* ReplyCache::Find(uint64_t client, uint64_t request_id) const {
  const auto of_client = by_client_.find(client);
  if (of_client == by_client_.end()) return nullptr;
  const auto place = PlaceOf(of_client->second, request_id);
  const bool found = place != of_client->second.end() && (*place)->id == request_id;
  return found ? &**place : nullptr;
}

void ReplyCache::Remember(Reply reply) {
  OfClient& of_client = by_client_[reply.client];
  const auto place = PlaceOf(of_client, reply.id);
  if (place != of_client.end() && (*place)->id == reply.id) return;
  bytes_ += BytesOf(reply);
  of_client.insert(place, replies_.insert(replies_.end(), std::move(reply)));
  if (of_client.size() > kMaxAnswersPerClient) Forget(of_client.front());
  while (replies_.size() > kMaxAnswers || bytes_ > kMaxAnswerBytes) Forget(replies_.begin());
}

void ReplyCache::Forget(Replies::iterator reply) {
  const auto client = by_client_.find(reply->client);
  CADRE_CHECK(client != by_client_.end() && bytes_ >= BytesOf(*reply), "reply ", reply->id,
              " of client ", reply->client);
  client->second.erase(PlaceOf(client->second, reply->id));
  if (client->second.empty()) by_client_.erase(client);
  bytes_ -= BytesOf(*reply);
  replies_.erase(reply);
}

std::vector<const Reply*> ReplyCache::All() const {
  std::vector<const Reply*> all;
  all.reserve(replies_.size());
  for (const Reply& reply : replies_) all.push_back(&reply);
  return all;
}

}  // namespace cadre::keyspace
