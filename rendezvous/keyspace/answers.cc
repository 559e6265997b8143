#include "rendezvous/keyspace/answers.h"

#include <algorithm>

#include "rendezvous/keyspace/limits.h"

namespace cadre::keyspace {
namespace {

size_t BytesOf(const Reply& reply) {
  return sizeof(Reply) + reply.message.size() + reply.value.size();
}

// Where the answer to this request is, or would be.
template <typename Replies>
auto PlaceOf(Replies& replies, uint64_t request_id) {
  if (replies.empty() || replies.back().id < request_id) return replies.end();
  return std::lower_bound(replies.begin(), replies.end(), request_id,
                          [](const Reply& reply, uint64_t id) { return reply.id < id; });
}

}  // namespace

const Reply* Answers::Find(uint64_t client, uint64_t request_id) const {
  const auto of_client = by_client_.find(client);
  if (of_client == by_client_.end()) return nullptr;
  const auto answer = PlaceOf(of_client->second, request_id);
  const bool found = answer != of_client->second.end() && answer->id == request_id;
  return found ? &*answer : nullptr;
}

void Answers::Remember(const Reply& reply) {
  OfClient& of_client = by_client_[reply.client];
  const auto place = PlaceOf(of_client, reply.id);
  if (place != of_client.end() && place->id == reply.id) return;
  of_client.insert(place, reply);
  bytes_ += BytesOf(reply);
  order_.emplace_back(reply.client, reply.id);
  if (of_client.size() > kMaxAnswersPerClient) {
    bytes_ -= BytesOf(of_client.front());
    of_client.pop_front();
  }
  while (order_.size() > kMaxAnswers || bytes_ > kMaxAnswerBytes) {
    Forget(order_.front());
    order_.pop_front();
  }
}

void Answers::Forget(const RequestKey& request) {
  const auto client = by_client_.find(request.first);
  if (client == by_client_.end()) return;
  OfClient& of_client = client->second;
  const auto answer = PlaceOf(of_client, request.second);
  if (answer == of_client.end() || answer->id != request.second) return;
  bytes_ -= BytesOf(*answer);
  of_client.erase(answer);
  if (of_client.empty()) by_client_.erase(client);
}

std::vector<const Reply*> Answers::All() const {
  std::vector<const Reply*> all;
  for (const RequestKey& request : order_) {
    const Reply* reply = Find(request.first, request.second);
    if (reply != nullptr) all.push_back(reply);
  }
  return all;
}

}  // namespace cadre::keyspace
