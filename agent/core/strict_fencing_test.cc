// Workers that are killed before the lease of their node ends.
#include <signal.h>

#include "agent/core/agent_core_rig.h"

namespace cadre::agent {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// With a lease of 10 s.
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
    m.mutable_welcome()->mutable_lease()->set_seconds(10);
    *m.mutable_welcome()->mutable_spec() = Config().join.spec();
    return Feed(ServerSaid{m});
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

// The supervisor kills by itself; what it reports then may come before any tick.
TEST_F(StrictFencingTest, AnAgentThatStoodStillKnowsWhyItsWorkersAreDead) {
  RunStrict();
  now_ = now_ + absl::Seconds(60);
  EXPECT_THAT(Died(1, 0, 0, SIGKILL), Contains("up exited 1/0 NODE_LOST"));
  EXPECT_THAT(Down(), ElementsAre("say lost the rendezvous server at h:1: connection refused "
                                  "(gives up in 1m)"))
      << "nothing runs any more";
}

// Whoever takes its place does not wait for a machine that sleeps.
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
  EXPECT_EQ(std::get<SendUp>(commands[0]).message.worker_exited().exit().ended_with(),
            "the server had not answered for 8s (--strict-fencing)");
}

}  // namespace
}  // namespace cadre::agent
