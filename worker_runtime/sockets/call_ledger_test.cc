#include "worker_runtime/sockets/call_ledger.h"

#include "base/status_matchers.h"

namespace cadre::sockets {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(CallLedger, SameCallsAreFineInWhateverOrderTheyAreTold) {
  CallLedger ledger(0, 3);
  ASSERT_OK(ledger.Begin("barrier"));
  ASSERT_OK(ledger.Hear(1, {1, 0, "barrier"}));
  ASSERT_OK(ledger.Hear(2, {2, 1, "broadcast"}));
  ledger.End();
  ASSERT_OK(ledger.Begin("broadcast"));
  ASSERT_OK(ledger.Hear(1, {1, 0, "barrier"}));
}

TEST(CallLedger, NamesBothSidesOfADifference) {
  CallLedger ledger(0, 3);
  ASSERT_OK(ledger.Begin("all-reduce (sum) of 4 float32"));
  EXPECT_THAT(
      ledger.Hear(2, {1, 0, "barrier"}),
      StatusIs(StatusCode::kInvalidArgument,
               HasSubstr("collective 1: rank 0 an all-reduce (sum) of 4 float32, rank 2 a barri")));
}

TEST(CallLedger, ADifferenceIsFoundByTheRankThatComesLaterAndByTheOneThatWentOn) {
  CallLedger late(0, 2);
  ASSERT_OK(late.Hear(1, {1, 0, "barrier"}));
  EXPECT_THAT(late.Begin("broadcast"), StatusIs(StatusCode::kInvalidArgument));
  CallLedger ahead(0, 2);
  ASSERT_OK(ahead.Begin("all-reduce of 0"));
  ahead.End();
  ASSERT_OK(ahead.Begin("barrier"));
  EXPECT_THAT(ahead.Hear(1, {1, 0, "all-reduce of 9"}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("as collective 1")));
}

TEST(CallLedger, LongCallsThatDifferAtTheirEndAreDifferent) {
  const std::string call(1000, '+');
  CallLedger ledger(0, 2), other(1, 2);
  ASSERT_OK(ledger.Begin(call + "1"));
  ASSERT_OK(other.Begin(call + "2"));
  EXPECT_LE(other.own().text.size(), kMaxCallText);
  EXPECT_THAT(ledger.Hear(1, other.own()), StatusIs(StatusCode::kInvalidArgument));
}

TEST(CallLedger, WhatWasForgottenIsNotCompared) {
  CallLedger ledger(0, 2);
  for (size_t i = 0; i <= kRememberedCalls; ++i) {
    ASSERT_OK(ledger.Begin("barrier"));
    ledger.End();
  }
  EXPECT_OK(ledger.Hear(1, {1, 0, "broadcast"}));
}

TEST(CallLedger, WhoLeavesIsMissedFromTheCallOnThatItHasNotDone) {
  CallLedger ledger(0, 2);
  ASSERT_OK(ledger.Begin("barrier"));
  EXPECT_OK(ledger.HearLeave(1, 1)) << "it has done its part";
  ledger.End();
  EXPECT_THAT(ledger.Begin("barrier"),
              StatusIs(StatusCode::kAborted, HasSubstr("rank 1 has left the communicator")));
  CallLedger waits(0, 2);
  ASSERT_OK(waits.Begin("barrier"));
  EXPECT_THAT(waits.HearLeave(1, 0), StatusIs(StatusCode::kAborted));
}

TEST(CallLedger, ALossIsExplainedByWhatWasToldFirstOfAll) {
  CallLedger ledger(0, 4);
  ASSERT_OK(ledger.Begin("barrier"));
  EXPECT_OK(ledger.WhyLost({2}));
  ledger.HearEnd(1);
  EXPECT_THAT(ledger.WhyLost({2}), StatusIs(StatusCode::kUnavailable, HasSubstr("rank 1")));
  ledger.HearEnd(2);
  EXPECT_THAT(ledger.WhyLost({2}), StatusIs(StatusCode::kUnavailable, HasSubstr("rank 2")));
  EXPECT_FALSE(ledger.HearFailure(3, DataLossError("rank 0 lost it")).ok());
  EXPECT_FALSE(ledger.HearFailure(1, InternalError("later")).ok());
  EXPECT_THAT(ledger.WhyLost({2}), StatusIs(StatusCode::kDataLoss));
  EXPECT_THAT(ledger.Begin("barrier"), StatusIs(StatusCode::kDataLoss));
}

TEST(CallLedger, AMessageIsLostByTheOtherEndAloneAndNotByAThirdRanksDeath) {
  CallLedger ledger(2, 4);
  ledger.HearEnd(3);
  EXPECT_OK(ledger.WhyMessageLost(0));
  EXPECT_OK(ledger.HearLeave(0, 0));
  EXPECT_THAT(ledger.WhyMessageLost(0), StatusIs(StatusCode::kAborted, HasSubstr("rank 0")));
  EXPECT_THAT(ledger.WhyMessageLost(3), StatusIs(StatusCode::kUnavailable, HasSubstr("rank 3")));
  EXPECT_FALSE(ledger.HearFailure(1, DataLossError("rank 1 lost it")).ok());
  EXPECT_THAT(ledger.WhyMessageLost(0), StatusIs(StatusCode::kDataLoss));
}

TEST(CallLedger, SaysWhoIsMissing) {
  CallLedger ledger(0, 4);
  ASSERT_OK(ledger.Begin("barrier"));
  ASSERT_OK(ledger.Hear(1, {1, 0, "barrier"}));
  ASSERT_OK(ledger.Hear(2, {0, 0, ""}));
  ASSERT_OK(ledger.Hear(3, {1, 0, "barrier"}));
  EXPECT_TRUE(ledger.HaveAllAnswered());
  EXPECT_THAT(ledger.Missing(), AllOf(HasSubstr("rank 2 (it has not started"),
                                      Not(HasSubstr("rank 1")), Not(HasSubstr("rank 3"))));
  ledger.ForgetAnswers();
  ASSERT_OK(ledger.Hear(1, {1, 0, "barrier"}));
  ASSERT_OK(ledger.Hear(2, {0, 0, ""}));
  EXPECT_FALSE(ledger.HaveAllAnswered());
  EXPECT_THAT(ledger.Missing(), AllOf(HasSubstr("rank 3 (it does not answer"),
                                      Not(HasSubstr("rank 1")), Not(HasSubstr("rank 2"))));
  ledger.HearEnd(3);
  EXPECT_TRUE(ledger.HaveAllAnswered()) << "nobody waits for an answer of who is gone";
  EXPECT_THAT(ledger.Missing(), HasSubstr("rank 3 (it is gone)"));
}

TEST(CallLedger, WhatWasAlteredOnItsWayIsCalledThatWhateverOthersSayOfIt) {
  CallLedger ledger(0, 3);
  ASSERT_OK(ledger.Begin("barrier"));
  ledger.HearEnd(1, /*altered=*/true);
  const auto altered =
      StatusIs(StatusCode::kUnavailable, HasSubstr("rank 1: what came was altered on its way"));
  EXPECT_THAT(ledger.WhyLost({1}), altered);
  EXPECT_THAT(ledger.WhyLost({2}), altered);
  EXPECT_THAT(ledger.Missing(), HasSubstr("rank 1 (what came was altered on its way)"));
  // The rank that sent it names its victim.
  EXPECT_FALSE(ledger.HearFailure(1, UnavailableError("rank 0 is gone")).ok());
  EXPECT_THAT(ledger.WhyLost({1}), altered);
  EXPECT_THAT(ledger.WhyMessageLost(1), altered);
}

TEST(CallLedger, WhoLeftBeforeItsConnectionEndedHasNotDied) {
  CallLedger ledger(0, 3);
  EXPECT_OK(ledger.HearLeave(1, 0));
  ledger.HearEnd(1);
  EXPECT_FALSE(ledger.has_any_died());
  ledger.HearEnd(2);
  EXPECT_TRUE(ledger.has_any_died());
}

}  // namespace
}  // namespace cadre::sockets
