#include "agent/core/server_session.h"

#include <signal.h>

#include "agent/core/agent_core_rig.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "rpc/versions.h"

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
  CommandBuffer out_{"j", 1};
};

TEST_F(SessionTest, TheServerIsAwayFromTheFirstEventToItsWelcome) {
  ServerSession session(config_, out_);
  session.NoteIfAway(At(1));
  session.NoteIfAway(At(2));
  EXPECT_EQ(session.away_since(), At(1));
  session.OnConnected(At(3), {}, 500);
  EXPECT_EQ(session.away_since(), At(1));
  EXPECT_FALSE(session.OnWelcome(At(4), Welcome(1)));
  EXPECT_FALSE(session.away_since().has_value());
  session.OnDisconnected(At(5));
  EXPECT_EQ(session.away_since(), At(5));
}

TEST_F(SessionTest, AnotherLifeOfTheServersState_HasForgottenUs) {
  ServerSession session(config_, out_);
  EXPECT_FALSE(session.OnWelcome(At(1), Welcome(1)));
  EXPECT_TRUE(session.Owns({1, 3}));
  EXPECT_FALSE(session.OnWelcome(At(2), Welcome(1)));
  EXPECT_TRUE(session.OnWelcome(At(3), Welcome(2)));
  EXPECT_FALSE(session.Owns({1, 3}));
  config_.adopted = AdoptedWorkers{{1, 3}, 2, MonoTime()};
  ServerSession successor(config_, out_);
  EXPECT_TRUE(successor.Owns({1, 3}));
  EXPECT_TRUE(successor.OnWelcome(At(4), Welcome(2)));
}

TEST_F(SessionTest, TheJoinNamesWhatRuns_AndNoPortThen) {
  config_.join.set_held_port(500);
  ServerSession session(config_, out_);
  session.OnConnected(At(1), {1, 3}, 501);
  const std::vector<AgentCommand> commands = out_.Take();
  ASSERT_EQ(commands.size(), 1u);
  const v1::NodeMessage& join = std::get<SendToServer>(commands[0]).message;
  EXPECT_EQ(GenerationOf(join), (GenerationId{1, 3}));
  EXPECT_EQ(join.join().held_port(), 0u);
}

TEST_F(SessionTest, RenewsThreeTimesALease) {
  ServerSession session(config_, out_);
  session.OnConnected(At(0), {}, 500);
  session.OnWelcome(At(0), Welcome(1));
  out_.Take();
  session.RenewIfDue(At(2), {});
  EXPECT_TRUE(out_.Take().empty());
  session.RenewIfDue(At(3), {});
  EXPECT_EQ(out_.Take().size(), 1u);
  EXPECT_EQ(session.renew_at(), At(6));
  session.OnDisconnected(At(4));
  EXPECT_EQ(session.renew_at(), MonoTime::Never());
}

TEST_F(SessionTest, AHeartbeatTellsOnceHowBusyTheNodeIs) {
  ServerSession session(config_, out_);
  session.OnConnected(At(0), {}, 500);
  session.OnWelcome(At(0), Welcome(1));
  v1::NodeUsage usage;
  usage.set_cpu(0.5);
  session.SetUsage(usage);
  out_.Take();
  const auto renew = [&](double at) {
    session.RenewIfDue(At(at), {});
    const std::vector<AgentCommand> commands = out_.Take();
    return std::get<SendToServer>(commands.at(0)).message.renew();
  };
  EXPECT_EQ(renew(3).usage().cpu(), 0.5f);
  EXPECT_FALSE(renew(6).has_usage());
}

TEST_F(SessionTest, AReasonIsNewsOnceUntilTheServerIsBack) {
  ServerSession session(config_, out_);
  EXPECT_TRUE(session.IsNewReason("refused"));
  EXPECT_FALSE(session.IsNewReason("refused"));
  session.OnWelcome(At(1), Welcome(1));
  EXPECT_TRUE(session.IsNewReason("refused"));
}

TEST(Fence, WithoutStrictFencing_Never) {
  Fence fence(/*strict=*/false, MonoTime());
  fence.OnConnected(At(100));
  fence.OnWelcome(absl::Seconds(10));
  EXPECT_EQ(fence.at(), MonoTime::Never());
  EXPECT_EQ(fence.NumberOfRenewal(At(103)), 0u);
}

TEST(Fence, CountsFromWhenTheAnsweredWasSent) {
  Fence fence(/*strict=*/true, MonoTime());
  fence.OnConnected(At(100));
  fence.OnWelcome(absl::Seconds(10));
  EXPECT_EQ(fence.at(), At(108));
  const uint64_t first = fence.NumberOfRenewal(At(103)), second = fence.NumberOfRenewal(At(106));
  EXPECT_TRUE(fence.OnAnswer(second));
  EXPECT_EQ(fence.at(), At(114));
  EXPECT_FALSE(fence.OnAnswer(first)) << "an older one says nothing new";
  const uint64_t third = fence.NumberOfRenewal(At(109));
  fence.OnConnected(At(110));
  EXPECT_FALSE(fence.OnAnswer(third)) << "of the connection before";
}

TEST(Fence, TimeThatTheMachineSleptCounts) {
  Fence fence(/*strict=*/true, MonoTime());
  fence.OnConnected(At(100));
  fence.OnWelcome(absl::Seconds(10));
  const uint64_t sent = fence.NumberOfRenewal(At(103));
  fence.OnSleep(absl::Seconds(5));
  EXPECT_EQ(fence.at(), At(103));
  EXPECT_TRUE(fence.OnAnswer(sent));
  EXPECT_EQ(fence.at(), At(106)) << "it was sent before that";
  fence.OnConnected(At(104));
  fence.OnSleep(absl::Seconds(1));
  fence.OnWelcome(absl::Seconds(10));
  EXPECT_EQ(fence.at(), At(111));
}

TEST(Fence, TimeThatTheMachineSleptCountsForThoseTakenOver) {
  Fence fence(/*strict=*/true, At(50));
  fence.OnSleep(absl::Seconds(20));
  EXPECT_EQ(fence.at(), At(30));
}

TEST(Fence, TakenOver_AsLongAsTheOtherOneHeldThem) {
  Fence fence(/*strict=*/true, At(50));
  EXPECT_EQ(fence.at(), At(50));
}

// Workers that are killed before the lease of their node ends.

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The lease is 10 s.
class StrictFencingTest : public AgentCoreTest {
 protected:
  StrictFencingTest() {
    AgentConfig config = Config();
    config.strict_fencing = true;
    core_.emplace(std::move(config));
    now_ = MonoTime::FromMicros(100000000);
  }
  Lines WelcomeWithLease() {
    v1::ServerMessage m;
    m.mutable_welcome()->set_server_id(1);
    *m.mutable_welcome()->mutable_version() = rpc::ThisVersion();
    m.mutable_welcome()->mutable_lease()->set_seconds(10);
    *m.mutable_welcome()->mutable_spec() = Config().join.spec();
    return Feed(ServerMessageReceived{m});
  }
  // Generation 1 runs; its Join was sent at 100 s.
  void RunStrict() {
    ASSERT_THAT(Feed(LinkUp{}), ElementsAre("up join port=500 gen=0"));
    ASSERT_THAT(WelcomeWithLease(), ElementsAre("begin"));
    ASSERT_THAT(Assign(1), ElementsAre("start 1", "hold 1 until 108s"));
    Feed(WorkerRuns{1, 0, 100});
    Feed(WorkerRuns{1, 1, 101});
  }
};

TEST_F(StrictFencingTest, AnAnswerHoldsTheWorkersFromWhenItsQuestionWasSent) {
  RunStrict();
  EXPECT_THAT(After(absl::Seconds(4)), ElementsAre("up renew 1"));
  EXPECT_THAT(After(absl::Seconds(4) - absl::Milliseconds(1)), ElementsAre("up renew 2"));
  EXPECT_THAT(Renewed(1), ElementsAre("hold 1 until 112s"));
  EXPECT_THAT(Renewed(1), IsEmpty());
  EXPECT_THAT(Renewed(99), IsEmpty());
  EXPECT_THAT(Renewed(2), ElementsAre("hold 1 until 115s"));
}

TEST_F(StrictFencingTest, WithoutAnAnswerTheWorkersAreKilledBeforeTheLeaseEnds) {
  RunStrict();
  EXPECT_THAT(Asks(5, 1, 1), ElementsAre("up store 5/1"));
  EXPECT_THAT(After(absl::Seconds(7)), ElementsAre("up renew 1"));
  EXPECT_THAT(Deadline(absl::Seconds(1)),
              ElementsAre("say no answer from the rendezvous server at h:1 for 8s: the workers are "
                          "killed (--strict-fencing)",
                          "answer 5/1 ABORTED", "stop 1 grace=0"));
  EXPECT_THAT(Died(1, 0, 0, SIGKILL), ElementsAre("up exited 1/0 NODE_LOST"));
  EXPECT_THAT(Feed(AllGone{1, 501}), IsEmpty());
}

TEST_F(StrictFencingTest, AFencedNodeComesBackAndRunsTheNextGeneration) {
  RunStrict();
  EXPECT_THAT(Down(), ElementsAre("say lost the rendezvous server at h:1: connection refused "
                                  "(workers are killed in 8s)"));
  EXPECT_THAT(Deadline(absl::Seconds(8)), Contains("stop 1 grace=0"));
  EXPECT_THAT(Died(1, 0, 0, SIGKILL), IsEmpty());
  EXPECT_THAT(Died(1, 1, 0, SIGKILL), IsEmpty());
  EXPECT_THAT(Feed(AllGone{1, 501}), IsEmpty());
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=501 gen=0"));
  EXPECT_THAT(WelcomeWithLease(),
              ElementsAre("say reached the rendezvous server at h:1", "up started 1/0",
                          "up exited 1/0 NODE_LOST", "up started 1/1", "up exited 1/1 NODE_LOST"));
  EXPECT_THAT(Assign(2), ElementsAre("start 2", "hold 2 until 116s"));
}

// The supervisor kills by itself, and its reports may be read before any tick.
TEST_F(StrictFencingTest, AnAgentThatStoodStillKnowsWhyItsWorkersAreDead) {
  RunStrict();
  now_ = now_ + absl::Seconds(60);
  EXPECT_THAT(Died(1, 0, 0, SIGKILL), Contains("up exited 1/0 NODE_LOST"));
  EXPECT_THAT(Down(), ElementsAre("say lost the rendezvous server at h:1: connection refused "
                                  "(gives up in 1m)"))
      << "nothing runs any more";
}

// The node that replaces this one does not wait for a sleeping machine.
//
// Fault (node): A machine sleeps for longer than its lease, with `--strict-fencing` -> Its workers
// are killed when it wakes up
TEST_F(StrictFencingTest, AMachineThatSleptOverItsLeaseKillsItsWorkersAtOnce) {
  RunStrict();
  EXPECT_THAT(Feed(MachineSlept{absl::Seconds(7)}), IsEmpty());
  EXPECT_THAT(Feed(MachineSlept{absl::Hours(1)}), Contains("stop 1 grace=0"));
  EXPECT_THAT(Died(1, 0, 0, SIGKILL), Contains("up exited 1/0 NODE_LOST"));
}

TEST_F(StrictFencingTest, TheServerHearsWhoKilledTheWorkers) {
  RunStrict();
  After(absl::Seconds(8));
  v1::WorkerExit exit;
  exit.set_signal(SIGKILL);
  const std::vector<AgentCommand> commands = core_->Step(now_, WorkerDied{1, 0, exit});
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_EQ(std::get<SendToServer>(commands[0]).message.worker_exited().exit().ended_with(),
            "the server had not answered for 8s (--strict-fencing)");
}

v1::StoreRequest Request(uint64_t client, uint64_t id) {
  v1::StoreRequest request;
  request.set_client(client);
  request.set_request_id(id);
  request.mutable_get()->set_key("k");
  return request;
}

v1::StoreReply Reply(uint64_t client, uint64_t id) {
  v1::StoreReply reply;
  reply.set_client(client);
  reply.set_request_id(id);
  return reply;
}

TEST(PendingStoreCalls, Add_SameIdOfTwoClients_AreTwoCalls) {
  PendingStoreCalls calls;
  EXPECT_EQ(calls.Add(Request(1, 7)).value(), true);
  EXPECT_EQ(calls.Add(Request(2, 7)).value(), true);
  EXPECT_EQ(calls.Add(Request(1, 7)).value(), false);
  EXPECT_EQ(calls.All().size(), 2u);
}

TEST(PendingStoreCalls, Answered_OnlyOnce) {
  PendingStoreCalls calls;
  ASSERT_OK(calls.Add(Request(1, 7)));
  EXPECT_FALSE(calls.OnReply(Reply(2, 7)));
  EXPECT_TRUE(calls.OnReply(Reply(1, 7)));
  EXPECT_FALSE(calls.OnReply(Reply(1, 7)));
}

TEST(PendingStoreCalls, FailAll_RefusesEachAndForgetsThem) {
  PendingStoreCalls calls;
  ASSERT_OK(calls.Add(Request(1, 7)));
  ASSERT_OK(calls.Add(Request(1, 8)));
  const auto replies = calls.FailAll(absl::AbortedError("over"));
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[1].request_id(), 8u);
  EXPECT_EQ(replies[1].client(), 1u);
  EXPECT_EQ(replies[1].code(), static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_TRUE(calls.All().empty());
}

TEST(PendingStoreCalls, LimitOfCalls_RefusesTheNextOne) {
  PendingStoreCalls calls;
  for (uint64_t i = 0; i < kMaxPendingStoreCalls; ++i) ASSERT_OK(calls.Add(Request(1, i)));
  EXPECT_THAT(calls.Add(Request(2, 1)), StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_TRUE(calls.OnReply(Reply(1, 0)));
  EXPECT_OK(calls.Add(Request(2, 1)));
}

TEST(PendingStoreCalls, LimitOfBytes_RefusesTheNextOne) {
  PendingStoreCalls calls;
  v1::StoreRequest large = Request(1, 0);
  large.mutable_set()->set_value(std::string(1 << 20, 'x'));
  uint64_t taken = 0;
  while (taken <= 64) {
    large.set_request_id(taken + 1);
    if (!calls.Add(large).ok()) break;
    ++taken;
  }
  EXPECT_EQ(taken, 63u);
}

}  // namespace
}  // namespace cadre::agent
