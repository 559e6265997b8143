#include "agent/core/fence.h"

#include <algorithm>
#include <iterator>

namespace cadre::agent {
namespace {

// The part of the lease, counted from when the last message was sent that the server has answered,
// after which the workers are killed. The rest is for their end.
constexpr double kFencePart = 0.8;
// Renewals whose answer is waited for.
constexpr size_t kRenewalsMax = 16;

}  // namespace

void Fence::Connected(MonoTime now) {
  join_sent_at_ = now;
  unanswered_.clear();
}

void Fence::Welcomed(absl::Duration lease) {
  lease_ = lease;
  confirmed_at_ = std::max(confirmed_at_, join_sent_at_);
}

uint64_t Fence::NumberOfRenewal(MonoTime now) {
  if (!strict_) return 0;
  unanswered_[++renewals_] = now;
  if (unanswered_.size() > kRenewalsMax) unanswered_.erase(unanswered_.begin());
  return renewals_;
}

bool Fence::Answered(uint64_t number) {
  const auto sent = unanswered_.find(number);
  if (sent == unanswered_.end()) return false;
  confirmed_at_ = std::max(confirmed_at_, sent->second);
  unanswered_.erase(unanswered_.begin(), std::next(sent));
  return true;
}

void Fence::Slept(absl::Duration duration) {
  for (MonoTime* moment : {&held_until_, &join_sent_at_, &confirmed_at_}) {
    *moment = *moment + -duration;
  }
  for (auto& [number, sent] : unanswered_) sent = sent + -duration;
}

MonoTime Fence::at() const {
  return strict_ ? std::max(held_until_, confirmed_at_ + patience()) : MonoTime::Never();
}

absl::Duration Fence::patience() const { return lease_ * kFencePart; }

}  // namespace cadre::agent
