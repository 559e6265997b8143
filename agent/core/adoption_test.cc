// An agent that carries on for one of its incarnation that died.
#include <signal.h>

#include "agent/core/agent_core_rig.h"

namespace cadre::agent {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two workers of generation 3 go on; the supervisor has told so.
class AdoptionTest : public AgentCoreTest {
 protected:
  AdoptionTest() {
    AgentConfig config = Config();
    config.adopted = AdoptedWorkers{{1, 3}, 2, MonoTime()};
    core_.emplace(std::move(config));
    EXPECT_THAT(Feed(AgentTick{}), IsEmpty());
    EXPECT_THAT(Feed(WorkerRuns{3, 0, 100}), IsEmpty());
    EXPECT_THAT(Feed(WorkerRuns{3, 1, 101}), IsEmpty());
  }
};

TEST_F(AdoptionTest, TheServerHearsWhatThereIs) {
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=0 gen=3"));
  EXPECT_THAT(Welcome(), ElementsAre("begin", "up started 3/0", "up started 3/1"));
  EXPECT_THAT(Assign(3), IsEmpty());
  EXPECT_THAT(Asks(5, 1, 3), ElementsAre("up store 5/1"));
  EXPECT_THAT(Died(3, 0, 0), ElementsAre("up exited 3/0 OK"));
  EXPECT_THAT(Died(3, 1, 0), ElementsAre("up exited 3/1 OK"));
  EXPECT_THAT(Finished(v1::SUCCEEDED, 0), Contains("stop 3 grace=0"));
  EXPECT_THAT(Feed(AllGone{3, 501}), Contains("exit 0"));
}

TEST_F(AdoptionTest, AnExitMeanwhileIsReported) {
  EXPECT_THAT(Died(3, 1, 7), ElementsAre("say rank 1 (local rank 1) on n1 exited with status 7 in "
                                         "generation 3; the server hears of it when it can be "
                                         "reached"));
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=0 gen=3"));
  EXPECT_THAT(Welcome(),
              ElementsAre("begin", "up started 3/0", "up started 3/1", "up exited 3/1 CRASH"));
  EXPECT_THAT(Died(3, 1, 7), IsEmpty()) << "told twice";
  EXPECT_THAT(Stop(3), ElementsAre("stop 3 grace=5s"));
}

TEST_F(AdoptionTest, AJobThatWentOnWithoutItsNodeFencesIt) {
  Feed(LinkUp{});
  Welcome();
  v1::ServerMessage stop;
  SetGeneration(&stop, {1, 3});
  stop.mutable_stop()->set_fenced(true);
  stop.mutable_stop()->set_reason("generation 3 went on without this node");
  EXPECT_THAT(Feed(ServerSaid{stop}), Contains("stop 3 grace=0"));
  EXPECT_THAT(Feed(AllGone{3, 501}), ElementsAre("up stopped 3 port=501"));
  EXPECT_THAT(Assign(5), ElementsAre("start 5"));
}

TEST_F(AdoptionTest, AStopThatIsUnderWayGoesOn_AndWhoEndedByItIsNoFailure) {
  AgentConfig config = Config();
  config.adopted = AdoptedWorkers{{1, 3}, 2, MonoTime(), /*stopping=*/true, /*first_rank=*/6};
  core_.emplace(std::move(config));
  EXPECT_THAT(Feed(AgentTick{}), ElementsAre("stop 3 grace=5s"));
  EXPECT_THAT(Died(3, 0, 0, SIGTERM), IsEmpty());
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=0 gen=3"));
  EXPECT_THAT(Welcome(), ElementsAre("begin", "up exited 3/0 CRASH"));
  EXPECT_THAT(Stop(3), IsEmpty());
  EXPECT_THAT(Remains(3, 1), ElementsAre(testing::StartsWith("say rank 7 (local rank 1) outlives"),
                                         "up remains 3/1"));
  EXPECT_THAT(Died(3, 1, 0, SIGKILL), ElementsAre("up exited 3/1 CRASH"));
  EXPECT_THAT(Feed(AllGone{3, 501}), Contains("up stopped 3 port=501"));
}

TEST_F(AdoptionTest, WhoIsRefusedLeavesTheWorkersAsTheyWere) {
  v1::ServerMessage refused;
  refused.mutable_rejected()->set_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
  refused.mutable_rejected()->set_message("the spec differs");
  Feed(LinkUp{});
  EXPECT_THAT(Asks(5, 1, 3), IsEmpty());
  EXPECT_THAT(Feed(ServerSaid{refused}),
              ElementsAre("exit 64 the rendezvous server at h:1 refuses this node: the spec "
                          "differs; the workers it was to take over go on"));
}

TEST_F(AdoptionTest, ByAServerOfAVersionTooFarAwayToo) {
  v1::ServerMessage welcome;
  welcome.mutable_welcome()->mutable_version()->set_minor(9);
  Feed(LinkUp{});
  EXPECT_THAT(Feed(ServerSaid{welcome}),
              ElementsAre(testing::AllOf(testing::HasSubstr("only minor versions next to each"),
                                         testing::HasSubstr("was to take over go on"))));
}

TEST_F(AdoptionTest, WithTheWrongTokenToo_ButAJobThatIsOverHasNone) {
  EXPECT_THAT(Feed(LinkDown{absl::UnauthenticatedError("wrong")}),
              ElementsAre(testing::HasSubstr("was to take over go on")));
  AgentConfig config = Config();
  config.adopted = AdoptedWorkers{{1, 3}, 2, MonoTime()};
  core_.emplace(std::move(config));
  v1::ServerMessage over;
  over.mutable_rejected()->set_code(static_cast<int>(absl::StatusCode::kFailedPrecondition));
  Feed(LinkUp{});
  EXPECT_THAT(Feed(ServerSaid{over}), ElementsAre("stop 3 grace=5s"));
}

TEST_F(AdoptionTest, AServerThatLostItsStateMeanwhile) {
  Feed(LinkUp{});
  EXPECT_THAT(
      Welcome(2),
      ElementsAre("begin", "say the server lost its state: stopping the workers and joining afresh",
                  "stop 3 grace=5s"));
}

TEST_F(AdoptionTest, AServerThatIsAwayIsWaitedForAsLongAsByAnyAgentWithWorkers) {
  EXPECT_THAT(Deadline(absl::Seconds(60)), ElementsAre("stop 3 grace=5s"));
}

TEST_F(AdoptionTest, ASignalBeforeItIsConnected_CancelsTheJob) {
  EXPECT_THAT(Feed(SignalReceived{SIGINT}), ElementsAre("say stopping (again to kill)"));
  Feed(LinkUp{});
  EXPECT_THAT(Welcome(), ElementsAre("begin", "up started 3/0", "up started 3/1", "up cancel 2"));
}

TEST_F(AdoptionTest, ASignalAndNoServer_StopsHere) {
  Feed(SignalReceived{SIGINT});
  EXPECT_THAT(Down(), ElementsAre("stop 3 grace=5s"));
  EXPECT_THAT(Feed(AllGone{3, 501}), ElementsAre("exit 130"));
}

TEST_F(AdoptionTest, ASignalAndAServerThatSaysNothing_StopsHere) {
  Feed(SignalReceived{SIGINT});
  EXPECT_THAT(Deadline(absl::Seconds(7)), ElementsAre("stop 3 grace=0"));
}

TEST_F(AdoptionTest, AHangIsNoticedFromNowOn) {
  Feed(LinkUp{});
  LimitProgress(/*silence_seconds=*/60);
  EXPECT_THAT(Progress(0, 17, 3), Contains("up progress of 1 step=17..17 slowest=0"));
  EXPECT_THAT(After(absl::Seconds(60)), Contains("look 3 overdue=0,1"));
}

TEST_F(AdoptionTest, StrictFencingGoesOnCountingWhereTheOtherWas) {
  now_ = MonoTime::FromMicros(100000000);
  AgentConfig config = Config();
  config.strict_fencing = true;
  config.adopted = AdoptedWorkers{{1, 3}, 2, now_ + absl::Seconds(2)};
  core_.emplace(std::move(config));
  Feed(AgentTick{});
  EXPECT_EQ(core_->NextDeadline(), now_ + absl::Seconds(2));
  EXPECT_THAT(After(absl::Seconds(2)), Contains("stop 3 grace=0"));
}

}  // namespace
}  // namespace cadre::agent
