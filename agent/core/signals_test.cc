// What an agent does when its process, or a scheduler, is told to stop.
#include <signal.h>

#include "agent/core/agent_core_rig.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SignalsTest : public AgentCoreTest {
 protected:
  // The server says which generation the job is in.
  void JobIsIn(uint64_t generation, v1::JobPhase phase = v1::RUNNING, uint64_t ended = 0) {
    v1::ServerMessage status;
    status.mutable_status()->set_generation(generation);
    status.mutable_status()->set_phase(phase);
    status.mutable_status()->set_ended_generation(ended);
    EXPECT_THAT(Feed(ServerSaid{status}), ElementsAre("show"));
  }
};

TEST_F(SignalsTest, FirstSignal_CancelsTheJobThroughTheServer) {
  Run();
  EXPECT_THAT(Feed(SignalReceived{SIGINT}),
              ElementsAre("say stopping (again to kill)", "up cancel 2"));
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Finished(v1::CANCELLED_PHASE, 130), ElementsAre("exit 130"));
}

TEST_F(SignalsTest, Warning_PreemptsTheJobOnce) {
  Run();
  EXPECT_THAT(Feed(SignalReceived{kWarningSignal}),
              ElementsAre("say warned by the scheduler: the job ends here, to go on later",
                          "up cancel 10 PREEMPTED"));
  EXPECT_THAT(Feed(SignalReceived{kWarningSignal}), IsEmpty());
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Finished(v1::FAILED, 75), ElementsAre("exit 75"));
}

TEST_F(SignalsTest, WarningWithoutServer_StopsHereAndIsWorthTryingLater) {
  Run();
  Down();
  EXPECT_THAT(Feed(SignalReceived{kWarningSignal}), Contains("stop 1 grace=5s"));
  EXPECT_THAT(Feed(SignalReceived{kWarningSignal}), IsEmpty());
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("exit 75"));
}

TEST_F(SignalsTest, AWorkerThatTakesLongerThanTheGraceIsNamed) {
  Run();
  Feed(SignalReceived{SIGINT});
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Died(1, 0, 0, SIGKILL), ElementsAre("up exited 1/0 CRASH"));
  After(absl::Seconds(5));
  EXPECT_THAT(Died(1, 1, 0, SIGKILL),
              ElementsAre("say rank 1 (local rank 1) had not ended 5s after SIGTERM and was killed "
                          "(--stop-grace)",
                          "up exited 1/1 CRASH"));
}

TEST_F(SignalsTest, SecondSignal_KillsAtOnceHereAndOnTheOtherNodes) {
  Run();
  Feed(SignalReceived{SIGINT});
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Feed(SignalReceived{SIGINT}),
              ElementsAre(HasSubstr("say killing the workers of all nodes"), "up cancel 2 at once",
                          "stop 1 grace=0"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Finished(v1::CANCELLED_PHASE, 130), ElementsAre("exit 130"));
}

TEST_F(SignalsTest, SecondSignal_AServerThatDoesNotAnswerIsNotWaitedFor) {
  Run();
  Feed(SignalReceived{SIGINT});
  Feed(SignalReceived{SIGINT});
  EXPECT_THAT(Feed(AllGone{1, 501}), IsEmpty());
  EXPECT_THAT(Deadline(absl::Seconds(2)), ElementsAre(HasSubstr("exit 130 the rendezvous server")));
}

TEST_F(SignalsTest, ThirdSignal_LeavesAtOnce) {
  Run();
  Feed(SignalReceived{SIGINT});
  Feed(SignalReceived{SIGINT});
  EXPECT_THAT(Feed(SignalReceived{SIGINT}), ElementsAre("up leave CANCELLED", "stop 1 grace=0"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("exit 130"));
}

TEST_F(SignalsTest, ThirdSignal_ProcessThatDoesNotDie_IsNotWaitedFor) {
  Run();
  for (int i = 0; i < 3; ++i) Feed(SignalReceived{SIGTERM});
  EXPECT_THAT(Deadline(absl::Seconds(2)), ElementsAre(HasSubstr("exit 143 some processes")));
}

TEST_F(SignalsTest, SignalWithoutServer_StopsHere) {
  Run();
  Down();
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}),
              ElementsAre("say stopping (again to kill)", "stop 1 grace=5s"));
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}), ElementsAre("stop 1 grace=0"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("exit 143"));
}

TEST_F(SignalsTest, SignalBeforeAnyServer_LeavesAtOnce) {
  Down();
  EXPECT_THAT(Feed(SignalReceived{SIGINT}),
              ElementsAre("say stopping (again to kill)", "exit 130"));
}

TEST_F(SignalsTest, ServerIgnoresTheCancel_LeavesAnyway) {
  Run();
  Feed(SignalReceived{SIGINT});
  EXPECT_THAT(After(absl::Seconds(6)), ElementsAre("up renew"));
  EXPECT_THAT(Deadline(absl::Seconds(1)), ElementsAre("stop 1 grace=0"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre(HasSubstr("exit 130 the rendezvous server")));
}

TEST_F(SignalsTest, LinkLostAfterTheCancel_StopsHere) {
  Run();
  Feed(SignalReceived{SIGINT});
  EXPECT_THAT(Down(), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("exit 130"));
}

TEST_F(SignalsTest, Sigterm_AtANodeOfAnElasticJobIsPreemption) {
  Run();
  v1::ServerMessage welcome;
  welcome.mutable_welcome()->set_server_id(1);
  *welcome.mutable_welcome()->mutable_spec() = Config().join.spec();
  welcome.mutable_welcome()->mutable_spec()->mutable_nodes()->set_min(1);
  welcome.mutable_welcome()->mutable_spec()->mutable_nodes()->set_max(3);
  Feed(ServerSaid{welcome});
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}),
              ElementsAre(HasSubstr("say preempted"), "up leave PREEMPTED", "stop 1 grace=5s"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("exit 143"));
}

TEST_F(SignalsTest, Sigterm_AtANodeOfAnElasticJobNotYetWelcomedIsPreemption) {
  AgentConfig config = Config();
  config.join.mutable_spec()->mutable_nodes()->set_min(1);
  config.join.mutable_spec()->mutable_nodes()->set_max(3);
  core_.emplace(std::move(config));
  ASSERT_THAT(Feed(LinkUp{}), ElementsAre("up join port=500 gen=0"));
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}),
              ElementsAre(HasSubstr("say preempted"), "up leave PREEMPTED", "exit 143"));
}

TEST_F(SignalsTest, Sigterm_AtASpareLeavesTheJobAsItIs) {
  for (const v1::JobPhase phase : {v1::RUNNING, v1::STOPPING, v1::GATHERING}) {
    core_.emplace(Config());
    Feed(LinkUp{});
    Welcome();
    JobIsIn(3, phase, phase == v1::GATHERING ? 3 : 2);
    EXPECT_THAT(Feed(SignalReceived{SIGTERM}),
                ElementsAre(HasSubstr("say preempted"), "up leave PREEMPTED", "exit 143"));
  }
}

TEST_F(SignalsTest, Sigterm_AtANodeThatTheJobWentOnWithoutLeavesTheJobAsItIs) {
  Run();
  JobIsIn(1);
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
  JobIsIn(2);
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}),
              ElementsAre(HasSubstr("say preempted"), "up leave PREEMPTED"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("exit 143"));
}

TEST_F(SignalsTest, Sigterm_AtANodeThatTheJobCountsOnCancelsIt) {
  // Before there is a generation; one of its name has had three.
  Feed(LinkUp{});
  Welcome();
  JobIsIn(3, v1::GATHERING);
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}), Contains("up cancel 15"));
  // Between two of them.
  core_.emplace(Config());
  Run();
  Stop(1);
  JobIsIn(1, v1::GATHERING, 1);
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}), Contains("up cancel 15"));
  // While it still stops what was before.
  core_.emplace(Config());
  Run();
  Assign(2);
  JobIsIn(2);
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}), Contains("up cancel 15"));
}

TEST_F(SignalsTest, Sigint_AtASpareCancelsTheJob) {
  Feed(LinkUp{});
  Welcome();
  JobIsIn(3);
  EXPECT_THAT(Feed(SignalReceived{SIGINT}), Contains("up cancel 2"));
}

TEST_F(SignalsTest, Sigterm_AtASpareThatServesCancelsTheJob) {
  AgentConfig config = Config();
  config.serves = true;
  core_.emplace(std::move(config));
  Feed(LinkUp{});
  Welcome();
  JobIsIn(3);
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}), Contains("up cancel 15"));
}

TEST_F(SignalsTest, Sigterm_AtANodeThatTheClusterReplacesIsPreemption) {
  AgentConfig config = Config();
  config.join.set_part(7);
  core_.emplace(std::move(config));
  Run();
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}),
              ElementsAre(HasSubstr("say preempted"), "up leave PREEMPTED", "stop 1 grace=5s"));
}

}  // namespace
}  // namespace cadre::agent
