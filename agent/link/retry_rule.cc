#include "agent/link/retry_rule.h"

#include <algorithm>

#include "agent/link/link_status.h"
#include "rpc/channels.h"

namespace cadre::agent {

RetryRule::RetryRule(bool returns_after_refusal)
    : returns_after_refusal_(returns_after_refusal), pause_(rpc::kReconnectBackoffMin) {}

absl::Status RetryRule::FilesUnusable(const absl::Status& status) const {
  return ever_welcome_ ? absl::UnavailableError(status.message()) : status;
}

absl::Status RetryRule::TokenReplaced(const absl::Status& refused) {
  return absl::UnavailableError(refused.message());
}

RetryRule::Next RetryRule::RoundEnded(const absl::Status& status, bool welcome) {
  ever_welcome_ = ever_welcome_ || welcome;
  // A stream that opens is not enough: a server whose disk is full answers, and lets nobody in.
  if (welcome) pause_ = rpc::kReconnectBackoffMin;
  Next next = {status, true, pause_};
  const bool refused = IsFinal(status);
  pause_ = std::min(2 * pause_, refused ? kRefusedBackoffMax : rpc::kReconnectBackoffMax);
  if (ever_welcome_ && returns_after_refusal_) return next;
  if (ever_welcome_ && absl::IsUnauthenticated(status)) {
    next.status = absl::UnavailableError(status.message());
    return next;
  }
  next.tries_again = !refused;
  return next;
}

}  // namespace cadre::agent
