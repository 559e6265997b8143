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

using SignalsTest = AgentCoreTest;

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

TEST_F(SignalsTest, SecondSignal_KillsAtOnce) {
  Run();
  Feed(SignalReceived{SIGINT});
  EXPECT_THAT(Feed(SignalReceived{SIGINT}), ElementsAre("up leave CANCELLED", "stop 1 grace=0"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("exit 130"));
}

TEST_F(SignalsTest, SecondSignal_ProcessThatDoesNotDie_IsNotWaitedFor) {
  Run();
  Feed(SignalReceived{SIGTERM});
  Feed(SignalReceived{SIGTERM});
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
