#include "rendezvous/keyspace/answers.h"

#include <algorithm>
#include <utility>

#include "rendezvous/keyspace/limits.h"

namespace cadre::keyspace {
namespace {

size_t BytesOf(const Reply& reply) {
  return sizeof(Reply) + reply.message.size() + reply.value.size();
}

// Where the answer to this request is, or would be.
template <typename OfClient>
auto PlaceOf(OfClient& replies, uint64_t request_id) {
  if (replies.empty() || replies.back()->id < request_id) return replies.end();
  // What is forgotten is the oldest, which its client mostly has in front.
  if (replies.front()->id >= request_id) return replies.begin();
  return std::lower_bound(replies.begin(), replies.end(), request_id,
                          [](const auto& reply, uint64_t id) { return reply->id < id; });
}

}  // namespace

const Reply* Answers::Find(uint64_t client, uint64_t request_id) const {
  const auto of_client = by_client_.find(client);
  if (of_client == by_client_.end()) return nullptr;
  const auto place = PlaceOf(of_client->second, request_id);
  const bool found = place != of_client->second.end() && (*place)->id == request_id;
  return found ? &**place : nullptr;
}

void Answers::Remember(Reply reply) {
  OfClient& of_client = by_client_[reply.client];
  const auto place = PlaceOf(of_client, reply.id);
  if (place != of_client.end() && (*place)->id == reply.id) return;
  bytes_ += BytesOf(reply);
  of_client.insert(place, replies_.insert(replies_.end(), std::move(reply)));
  if (of_client.size() > kMaxAnswersPerClient) Forget(of_client.front());
  while (replies_.size() > kMaxAnswers || bytes_ > kMaxAnswerBytes) Forget(replies_.begin());
}

void Answers::Forget(Replies::iterator reply) {
  const auto client = by_client_.find(reply->client);
  client->second.erase(PlaceOf(client->second, reply->id));
  if (client->second.empty()) by_client_.erase(client);
  bytes_ -= BytesOf(*reply);
  replies_.erase(reply);
}

std::vector<const Reply*> Answers::All() const {
  std::vector<const Reply*> all;
  all.reserve(replies_.size());
  for (const Reply& reply : replies_) all.push_back(&reply);
  return all;
}

}  // namespace cadre::keyspace
