#include "agent/core/session.h"

#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

constexpr MonoTime At(int64_t seconds) { return MonoTime::FromMicros(seconds * 1000000); }

class SessionTest : public testing::Test {
 protected:
  static v1::Welcome Welcome(uint64_t server_id) {
    v1::Welcome welcome;
    welcome.set_server_id(server_id);
    welcome.mutable_lease()->set_seconds(9);
    return welcome;
  }

  AgentConfig config_;
  Outbox out_{"j", 1};
};

TEST_F(SessionTest, TheServerIsAwayFromTheFirstEventToItsWelcome) {
  Session session(config_, out_);
  session.Count(At(1));
  session.Count(At(2));
  EXPECT_EQ(session.away_since(), At(1));
  session.Connected(At(3), {}, 500);
  EXPECT_EQ(session.away_since(), At(1));
  EXPECT_FALSE(session.Welcomed(At(4), Welcome(1)));
  EXPECT_FALSE(session.away_since().has_value());
  session.Lost(At(5));
  EXPECT_EQ(session.away_since(), At(5));
}

TEST_F(SessionTest, AnotherLifeOfTheServersState_HasForgottenUs) {
  Session session(config_, out_);
  EXPECT_FALSE(session.Welcomed(At(1), Welcome(1)));
  EXPECT_TRUE(session.Owns({1, 3}));
  EXPECT_FALSE(session.Welcomed(At(2), Welcome(1)));
  EXPECT_TRUE(session.Welcomed(At(3), Welcome(2)));
  EXPECT_FALSE(session.Owns({1, 3}));
  config_.adopted = AdoptedWorkers{{1, 3}, 2, MonoTime()};
  Session successor(config_, out_);
  EXPECT_TRUE(successor.Owns({1, 3}));
  EXPECT_TRUE(successor.Welcomed(At(4), Welcome(2)));
}

TEST_F(SessionTest, TheJoinNamesWhatRuns_AndNoPortThen) {
  config_.join.set_held_port(500);
  Session session(config_, out_);
  session.Connected(At(1), {1, 3}, 501);
  const std::vector<AgentCommand> commands = out_.Take();
  ASSERT_EQ(commands.size(), 1u);
  const v1::NodeMessage& join = std::get<SendUp>(commands[0]).message;
  EXPECT_EQ(GenerationOf(join), (GenerationId{1, 3}));
  EXPECT_EQ(join.join().held_port(), 0u);
}

TEST_F(SessionTest, RenewsThreeTimesALease) {
  Session session(config_, out_);
  session.Connected(At(0), {}, 500);
  session.Welcomed(At(0), Welcome(1));
  out_.Take();
  session.RenewIfDue(At(2), {});
  EXPECT_TRUE(out_.Take().empty());
  session.RenewIfDue(At(3), {});
  EXPECT_EQ(out_.Take().size(), 1u);
  EXPECT_EQ(session.renew_at(), At(6));
  session.Lost(At(4));
  EXPECT_EQ(session.renew_at(), MonoTime::Never());
}

TEST_F(SessionTest, AHeartbeatTellsOnceHowBusyTheNodeIs) {
  Session session(config_, out_);
  session.Connected(At(0), {}, 500);
  session.Welcomed(At(0), Welcome(1));
  v1::NodeUsage usage;
  usage.set_cpu(0.5);
  session.NodeUses(usage);
  out_.Take();
  const auto renew = [&](double at) {
    session.RenewIfDue(At(at), {});
    const std::vector<AgentCommand> commands = out_.Take();
    return std::get<SendUp>(commands.at(0)).message.renew();
  };
  EXPECT_EQ(renew(3).usage().cpu(), 0.5f);
  EXPECT_FALSE(renew(6).has_usage());
}

TEST_F(SessionTest, AReasonIsNewsOnceUntilTheServerIsBack) {
  Session session(config_, out_);
  EXPECT_TRUE(session.IsNewReason("refused"));
  EXPECT_FALSE(session.IsNewReason("refused"));
  session.Welcomed(At(1), Welcome(1));
  EXPECT_TRUE(session.IsNewReason("refused"));
}

}  // namespace
}  // namespace cadre::agent
