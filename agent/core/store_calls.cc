#include "agent/core/store_calls.h"

#include "absl/strings/str_cat.h"
#include "rpc/store_reply.h"

namespace cadre::agent {

absl::StatusOr<bool> PendingStoreCalls::Add(const v1::StoreRequest& request) {
  const Key key{request.client(), request.request_id()};
  if (waiting_.count(key) != 0) return false;
  const size_t bytes = request.ByteSizeLong();
  if (waiting_.size() >= kMaxPendingStoreCalls || bytes_ + bytes > kMaxPendingStoreBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this node already has ", waiting_.size(),
                     " unanswered store operations; wait for some of them"));
  }
  waiting_.emplace(key, request);
  bytes_ += bytes;
  return true;
}

bool PendingStoreCalls::Answered(const v1::StoreReply& reply) {
  const auto found = waiting_.find({reply.client(), reply.request_id()});
  if (found == waiting_.end()) return false;
  bytes_ -= found->second.ByteSizeLong();
  waiting_.erase(found);
  return true;
}

std::vector<v1::StoreReply> PendingStoreCalls::FailAll(const absl::Status& status) {
  std::vector<v1::StoreReply> replies;
  for (const auto& [key, request] : waiting_) {
    replies.push_back(rpc::StoreErrorReply(request, status));
  }
  waiting_.clear();
  bytes_ = 0;
  return replies;
}

std::vector<v1::StoreRequest> PendingStoreCalls::All() const {
  std::vector<v1::StoreRequest> requests;
  for (const auto& [key, request] : waiting_) requests.push_back(request);
  return requests;
}

}  // namespace cadre::agent
