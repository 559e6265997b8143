#include "rendezvous/core/answers.h"

namespace cadre {

const v1::StoreReply* Answers::Find(uint64_t client, uint64_t request_id) const {
  const auto of_client = by_client_.find(client);
  if (of_client == by_client_.end()) return nullptr;
  const auto answer = of_client->second.find(request_id);
  return answer == of_client->second.end() ? nullptr : &answer->second;
}

void Answers::Remember(const v1::StoreReply& reply) {
  std::map<uint64_t, v1::StoreReply>& of_client = by_client_[reply.client()];
  if (!of_client.emplace(reply.request_id(), reply).second) return;
  bytes_ += reply.ByteSizeLong();
  order_.emplace_back(reply.client(), reply.request_id());
  if (of_client.size() > kMaxAnswersPerClient) {
    Forget({reply.client(), of_client.begin()->first});
  }
  while (order_.size() > kMaxAnswers || bytes_ > kMaxAnswerBytes) {
    Forget(order_.front());
    order_.pop_front();
  }
}

void Answers::Forget(const RequestKey& request) {
  const auto client = by_client_.find(request.first);
  if (client == by_client_.end()) return;
  const auto answer = client->second.find(request.second);
  if (answer == client->second.end()) return;
  bytes_ -= answer->second.ByteSizeLong();
  client->second.erase(answer);
  if (client->second.empty()) by_client_.erase(client);
}

std::vector<const v1::StoreReply*> Answers::All() const {
  std::vector<const v1::StoreReply*> all;
  for (const RequestKey& request : order_) {
    const v1::StoreReply* reply = Find(request.first, request.second);
    if (reply != nullptr) all.push_back(reply);
  }
  return all;
}

}  // namespace cadre
