// Elections in a real etcd.
#include "rendezvous/log/etcd_leadership.h"

#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/etcd_process.h"

namespace cadre::log {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

class LeadershipTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!EtcdProcess::IsInstalled()) GTEST_SKIP() << "needs Debian's etcd-server";
    ASSERT_TRUE(etcd_.Start());
    EtcdOptions options;
    options.endpoints = {etcd_.endpoint()};
    auto client = EtcdClient::Make(options);
    ASSERT_OK(client);
    client_ = *std::move(client);
  }
  Leadership::Outcome Campaign(const std::string& address) {
    auto outcome = Leadership::Campaign({client_, "/test/", address, unconfirmed_limit_, ttl_});
    EXPECT_OK(outcome);
    return outcome.ok() ? *std::move(outcome) : Leadership::Outcome();
  }

  EtcdProcess etcd_;
  std::shared_ptr<EtcdClient> client_;
  absl::Duration unconfirmed_limit_ = absl::Minutes(10);
  // Longer than any pause of a busy machine.
  absl::Duration ttl_ = absl::Seconds(5);
};

TEST_F(LeadershipTest, OneLeadsAndTheOthersLearnWho) {
  Leadership::Outcome first = Campaign("a:1");
  ASSERT_NE(first.won, nullptr);
  EXPECT_EQ(first.leader, "a:1");
  const Leadership::Outcome second = Campaign("b:2");
  EXPECT_EQ(second.won, nullptr);
  EXPECT_EQ(second.leader, "a:1");
}

TEST_F(LeadershipTest, WhoGivesItUpIsFollowedAtOnce) {
  Leadership::Outcome first = Campaign("a:1");
  const int64_t revision = first.won->create_revision();
  first.won.reset();
  const Leadership::Outcome second = Campaign("b:2");
  ASSERT_NE(second.won, nullptr);
  EXPECT_GT(second.won->create_revision(), revision);
}

TEST_F(LeadershipTest, ItOutlivesItsLeaseByBeingRenewed) {
  const Leadership::Outcome first = Campaign("a:1");
  EXPECT_OK(first.won->AwaitLoss(ttl_ + absl::Seconds(1)));
  EXPECT_EQ(Campaign("b:2").won, nullptr);
}

TEST_F(LeadershipTest, ALeaseThatHasEndedIsNoticed) {
  const Leadership::Outcome first = Campaign("a:1");
  etcdserverpb::RangeRequest request;
  request.set_key(first.won->key());
  const auto found = client_->Range(request);
  ASSERT_OK(found);
  ASSERT_OK(client_->Revoke(found->kvs(0).lease()));
  EXPECT_THAT(first.won->AwaitLoss(kPatience),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has ended")));
}

TEST_F(LeadershipTest, AnEtcdThatIsAwayForAMomentChangesNothing) {
  const Leadership::Outcome first = Campaign("a:1");
  etcd_.Kill();
  ASSERT_TRUE(etcd_.Start());
  EXPECT_OK(first.won->AwaitLoss(ttl_ + absl::Seconds(1)));
  EXPECT_EQ(Campaign("b:2").leader, "a:1");
}

TEST_F(LeadershipTest, AnEtcdThatStaysAwayEndsIt) {
  unconfirmed_limit_ = absl::Seconds(1);
  const Leadership::Outcome first = Campaign("a:1");
  etcd_.Kill();
  absl::Status lost;
  const MonoTime until = MonoNow() + kPatience;
  while (lost.ok() && MonoNow() < until) lost = first.won->AwaitLoss(absl::Milliseconds(50));
  EXPECT_THAT(lost, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has not confirmed")));
}

}  // namespace
}  // namespace cadre::log
