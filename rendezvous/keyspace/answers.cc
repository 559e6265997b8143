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
template <typename Replies>
auto PlaceOf(Replies& replies, uint64_t request_id) {
  if (replies.empty() || replies.back().id < request_id) return replies.end();
  // What is forgotten is the oldest, which its client mostly has in front.
  if (replies.front().id >= request_id) return replies.begin();
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

void Answers::Remember(Reply reply) {
  OfClient& of_client = by_client_[reply.client];
  const auto place = PlaceOf(of_client, reply.id);
  if (place != of_client.end() && place->id == reply.id) return;
  bytes_ += BytesOf(reply);
  order_.emplace_back(reply.client, reply.id);
  of_client.insert(place, std::move(reply));
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
  all.reserve(order_.size());
  // By client, where its next one should be: its answers mostly came in the order of their ids.
  absl::flat_hash_map<uint64_t, OfClient::const_iterator> nexts;
  for (const auto& [client, id] : order_) {
    const auto of_client = by_client_.find(client);
    if (of_client == by_client_.end()) continue;
    const OfClient& replies = of_client->second;
    const auto next = nexts.try_emplace(client, replies.begin()).first;
    OfClient::const_iterator& at = next->second;
    if (at == replies.end() || at->id != id) at = PlaceOf(replies, id);
    if (at != replies.end() && at->id == id) all.push_back(&*at++);
  }
  return all;
}

}  // namespace cadre::keyspace
