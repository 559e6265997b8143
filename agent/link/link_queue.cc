#include "agent/link/link_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "rpc/message_limits.h"

namespace cadre::agent {

absl::Status LinkQueue::Add(v1::NodeMessage message) {
  size_t bytes = message.ByteSizeLong();
  const bool refused = bytes > static_cast<size_t>(rpc::kMessageBytesMax);
  if (refused && !message.has_store()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a message of ", bytes, " bytes is over the limit of ", rpc::kMessageBytesMax));
  }
  if (refused) {
    message.mutable_store()->clear_operation();
    bytes = message.ByteSizeLong();
  }
  if (waiting_.size() >= kLinkQueueMessagesMax || bytes_ + bytes > kLinkQueueBytesMax) {
    return absl::ResourceExhaustedError("too much waits to be sent");
  }
  bytes_ += bytes;
  waiting_.push_back({std::move(message), bytes, refused});
  return absl::OkStatus();
}

std::vector<v1::NodeMessage> LinkQueue::TakeRefused() {
  std::vector<v1::NodeMessage> refused;
  while (!waiting_.empty() && waiting_.front().refused) refused.push_back(TakeFront().message);
  return refused;
}

v1::NodeMessage LinkQueue::TakeBundle() {
  CADRE_CHECK(!waiting_.empty(), "nothing waits to be sent");
  size_t bytes = waiting_.front().bytes;
  v1::NodeMessage first = TakeFront().message;
  while (!waiting_.empty() && !waiting_.front().refused &&
         bytes + waiting_.front().bytes <= rpc::kBundleBytesMax) {
    bytes += waiting_.front().bytes;
    *first.add_more() = TakeFront().message;
  }
  return first;
}

LinkQueue::Outgoing LinkQueue::TakeFront() {
  CADRE_CHECK(!waiting_.empty(), "nothing waits to be sent");
  Outgoing front = std::move(waiting_.front());
  waiting_.pop_front();
  CADRE_CHECK(bytes_ >= front.bytes, bytes_, " of ", front.bytes);
  bytes_ -= front.bytes;
  return front;
}

}  // namespace cadre::agent
