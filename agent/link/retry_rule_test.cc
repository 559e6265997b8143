#include "agent/link/retry_rule.h"

#include "base/status_matchers.h"
#include "rpc/channels.h"

namespace cadre::agent {
namespace {

const absl::Status kAway = absl::UnavailableError("away");
const absl::Status kRefused = absl::UnauthenticatedError("another token");
const absl::Status kForbidden = absl::PermissionDeniedError("another job's token");
const absl::Status kUnusable = absl::InvalidArgumentError("no PEM");

TEST(RetryRule, BeforeAWelcomeARefusalEndsTheLink) {
  for (const bool returns : {false, true}) {
    RetryRule rule(returns);
    EXPECT_TRUE(rule.RoundEnded(kAway, false).tries_again);
    for (const absl::Status& status : {kRefused, kForbidden, kUnusable}) {
      const RetryRule::Next next = rule.RoundEnded(status, false);
      EXPECT_FALSE(next.tries_again) << status;
      EXPECT_EQ(next.status, status);
    }
    EXPECT_EQ(rule.FilesUnusable(kUnusable), kUnusable);
    EXPECT_EQ(RetryRule::TokenReplaced(kRefused), absl::UnavailableError("another token"));
  }
}

TEST(RetryRule, AfterAWelcomeWhoDoesNotKnowTheTokenIsNotTheServer) {
  RetryRule rule(false);
  EXPECT_TRUE(rule.RoundEnded(kAway, true).tries_again);
  const RetryRule::Next next = rule.RoundEnded(kRefused, false);
  EXPECT_TRUE(next.tries_again);
  EXPECT_EQ(next.status, absl::UnavailableError("another token"));
  EXPECT_EQ(rule.FilesUnusable(kUnusable), absl::UnavailableError("no PEM"));
  // It knows the token, and says no.
  EXPECT_FALSE(rule.RoundEnded(kForbidden, false).tries_again);
  EXPECT_FALSE(rule.RoundEnded(kUnusable, false).tries_again);
}

TEST(RetryRule, WhoReturnsAfterARefusalHearsOfIt) {
  RetryRule rule(true);
  rule.RoundEnded(kAway, true);
  for (const absl::Status& status : {kRefused, kForbidden, kUnusable}) {
    const RetryRule::Next next = rule.RoundEnded(status, false);
    EXPECT_TRUE(next.tries_again) << status;
    EXPECT_EQ(next.status, status);
  }
}

TEST(RetryRule, PausesGrowUntilAWelcomeAndFurtherAfterRefusals) {
  RetryRule rule(true);
  EXPECT_EQ(rule.RoundEnded(kAway, true).pause, rpc::kReconnectBackoffMin);
  EXPECT_EQ(rule.RoundEnded(kAway, false).pause, 2 * rpc::kReconnectBackoffMin);
  for (int i = 0; i < 10; ++i) rule.RoundEnded(kAway, false);
  EXPECT_EQ(rule.RoundEnded(kAway, false).pause, rpc::kReconnectBackoffMax);
  for (int i = 0; i < 10; ++i) rule.RoundEnded(kRefused, false);
  EXPECT_EQ(rule.RoundEnded(kRefused, false).pause, kRefusedBackoffMax);
  EXPECT_EQ(rule.RoundEnded(kAway, true).pause, rpc::kReconnectBackoffMin);
}

}  // namespace
}  // namespace cadre::agent
