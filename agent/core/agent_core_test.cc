#include "agent/core/agent_core.h"

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "agent/core/agent_core_rig.h"
#include "agent/core/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/versions.h"

namespace cadre::agent {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(AgentCoreTest, Success_EndsWithTheServersStatus) {
  Run();
  EXPECT_THAT(Died(1, 0, 0), ElementsAre("up exited 1/0 OK"));
  EXPECT_THAT(Died(1, 1, 0), ElementsAre("up exited 1/1 OK"));
  EXPECT_THAT(Finished(v1::SUCCEEDED, 0), ElementsAre("stop 1 grace=0"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("exit 0"));
  EXPECT_THAT(Feed(LinkUp{}), IsEmpty());
  EXPECT_EQ(core_->NextDeadline(), MonoTime::Never());
}

TEST_F(AgentCoreTest, WorkerFails_StopsOnOrderAndRunsTheNextGeneration) {
  Run();
  EXPECT_THAT(Died(1, 0, 1), ElementsAre("up exited 1/0 CRASH"));
  EXPECT_THAT(Died(1, 0, 1), IsEmpty());
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Died(1, 1, 0, SIGTERM), ElementsAre("up exited 1/1 CRASH"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Assign(2), ElementsAre("start 2"));
  EXPECT_THAT(Feed(WorkerRuns{1, 0, 100}), IsEmpty());
  EXPECT_THAT(Feed(WorkerRuns{2, 0, 102}), ElementsAre("up started 2/0"));
}

TEST_F(AgentCoreTest, Assign_RepeatsAndOlderOnes_AreIgnored) {
  Run();
  EXPECT_THAT(Assign(1), IsEmpty());
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Assign(1), IsEmpty());
  EXPECT_THAT(Assign(3), ElementsAre("start 3"));
  EXPECT_THAT(Assign(2), IsEmpty());
}

TEST_F(AgentCoreTest, AssignWhileAnOlderGenerationRuns_StopsThatFirst) {
  Run();
  EXPECT_THAT(Assign(2), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Assign(2), IsEmpty());
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("start 2"));
}

TEST_F(AgentCoreTest, AssignThatWaits_IsForgottenWithItsConnection) {
  Run();
  EXPECT_THAT(Assign(2), ElementsAre("stop 1 grace=5s"));
  Down();
  Feed(LinkUp{});
  Welcome();
  EXPECT_THAT(Feed(AllGone{1, 501}), testing::Not(Contains("start 2")));
  EXPECT_THAT(Assign(2), ElementsAre("start 2")) << "the server gives it again";
}

TEST_F(AgentCoreTest, Stop_OfWhatNeverStarted_IsAnsweredAndFencesIt) {
  Feed(LinkUp{});
  Welcome();
  EXPECT_THAT(Stop(4), ElementsAre("up stopped 4 port=500"));
  EXPECT_THAT(Assign(4), IsEmpty());
  EXPECT_THAT(Stop(4), ElementsAre("up stopped 4 port=500"));
}

TEST_F(AgentCoreTest, Stop_RepeatedWithLessGrace_Hurries) {
  Run();
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Stop(1), IsEmpty());
  EXPECT_THAT(Stop(1, 1), ElementsAre("stop 1 grace=1s"));
}

TEST_F(AgentCoreTest, Lease_IsRenewedThreeTimes) {
  Feed(LinkUp{});
  Welcome();
  EXPECT_THAT(Deadline(absl::Seconds(3)), ElementsAre("up renew"));
  EXPECT_THAT(Deadline(absl::Seconds(3)), ElementsAre("up renew"));
  Down();
  EXPECT_THAT(After(absl::Seconds(3)), IsEmpty());
}

TEST_F(AgentCoreTest, NeverReached_SaysEachReasonOnceThenGivesUp) {
  EXPECT_THAT(Feed(AgentTick{}), IsEmpty());
  const std::string waiting = "say waiting for the rendezvous server at h:1: ";
  EXPECT_THAT(Down(), ElementsAre(waiting + "connection refused (gives up in 10m)"));
  EXPECT_THAT(Down(), IsEmpty());
  now_ = now_ + absl::Seconds(60);
  EXPECT_THAT(Down(absl::UnavailableError("no route")),
              ElementsAre(waiting + "no route (gives up in 9m)"));
  EXPECT_THAT(Deadline(absl::Minutes(9)),
              ElementsAre("exit 69 the rendezvous server at h:1 could not be reached for 10m: no "
                          "route; whether the job had ended before this node came cannot be told "
                          "from here, only where it was served"));
}

TEST_F(AgentCoreTest, ConnectedButNotWelcomed_GivesUpToo) {
  Feed(AgentTick{});
  Feed(LinkUp{});
  EXPECT_THAT(Deadline(kWelcomeIsLate),
              ElementsAre("say waiting for the rendezvous server at h:1: it is connected, and has "
                          "not answered for 5s; its log may say why (gives up in 9m55s)"));
  EXPECT_THAT(Deadline(absl::Minutes(10) - kWelcomeIsLate), ElementsAre(HasSubstr("exit 69")));
}

TEST_F(AgentCoreTest, ReachedAfterWaiting_IsSaidOnce) {
  Down();
  Feed(LinkUp{});
  EXPECT_THAT(Welcome(), ElementsAre("say reached the rendezvous server at h:1", "begin"));
}

TEST_F(AgentCoreTest, WelcomedFirst_BeginsByItsOwnSpecOrByTheServers) {
  v1::ServerMessage welcome;
  welcome.mutable_welcome()->mutable_spec()->add_command("theirs");
  AgentConfig config = Config();
  config.join.mutable_spec()->add_command("own");
  core_.emplace(config);
  Feed(LinkUp{});
  EXPECT_THAT(Feed(ServerSaid{welcome}), ElementsAre("begin own"));
  EXPECT_THAT(Feed(ServerSaid{welcome}), IsEmpty());
  config.join.clear_spec();
  core_.emplace(config);
  Feed(LinkUp{});
  EXPECT_THAT(Feed(ServerSaid{welcome}), ElementsAre("begin theirs"));
}

TEST_F(AgentCoreTest, AServerOfAVersionTooFarAway_IsLeftWithALineThatSaysWhatToUpgrade) {
  v1::ServerMessage welcome;
  welcome.mutable_welcome()->mutable_version()->set_minor(rpc::kMinorVersion + 2);
  Feed(LinkUp{});
  EXPECT_THAT(
      Feed(ServerSaid{welcome}),
      ElementsAre(AllOf(HasSubstr("exit 75 this node is of Cadre "), HasSubstr(", the server of "),
                        HasSubstr("upgrade this node to "))));
}

TEST_F(AgentCoreTest, WrongToken_IsNotRetried) {
  EXPECT_THAT(Down(absl::UnauthenticatedError("token is wrong")),
              ElementsAre("exit 69 the rendezvous server at h:1 refuses this token (token is "
                          "wrong); every node of a job needs the same one (--token-file)"));
}

TEST_F(AgentCoreTest, WhatAnothersTokenIsGoodForIsSaid) {
  EXPECT_THAT(Down(absl::PermissionDeniedError("this is another part's")),
              ElementsAre("exit 69 the rendezvous server at h:1 refuses this token (this is "
                          "another part's)"));
}

TEST_F(AgentCoreTest, Rejected_Table) {
  struct Case {
    absl::StatusCode code;
    int status;
  };
  for (const Case& c :
       {Case{absl::StatusCode::kInvalidArgument, 64}, Case{absl::StatusCode::kAlreadyExists, 75},
        Case{absl::StatusCode::kFailedPrecondition, 75}}) {
    core_.emplace(Config());
    Feed(LinkUp{});
    EXPECT_THAT(Rejected(c.code),
                ElementsAre(absl::StrCat("exit ", c.status,
                                         " the rendezvous server at h:1 refuses this node: other\\n"
                                         "command")));
  }
}

TEST_F(AgentCoreTest, LinkLost_WorkersGoOnAndAllIsSaidAgain) {
  Run();
  EXPECT_THAT(Down(), ElementsAre("say lost the rendezvous server at h:1: connection refused "
                                  "(workers keep running; stops them in 1m)"));
  EXPECT_THAT(Died(1, 0, 0), IsEmpty());
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=0 gen=1"));
  EXPECT_THAT(Welcome(), ElementsAre("say reached the rendezvous server at h:1", "up started 1/0",
                                     "up exited 1/0 OK", "up started 1/1"));
}

TEST_F(AgentCoreTest, LinkLostForTooLong_StopsOrphans) {
  Run();
  Down();
  EXPECT_THAT(Deadline(absl::Seconds(60)), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Feed(LinkUp{}), IsEmpty());
  EXPECT_THAT(Feed(AllGone{1, 501}),
              ElementsAre("exit 69 the rendezvous server at h:1 could not be reached for 1m: "
                          "connection refused"));
}

TEST_F(AgentCoreTest, LinkLostForGood_TellsWhichWorkerFailed) {
  for (const int signal : {0, SIGINT}) {
    core_.emplace(Config());
    Run();
    v1::ServerMessage status;
    status.mutable_status()->set_restarts(3);
    Feed(ServerSaid{status});
    Down();
    EXPECT_THAT(Died(1, 1, 7),
                ElementsAre("say rank 1 (local rank 1) on n1 exited with status 7 in generation 1; "
                            "the server hears of it when it can be reached"));
    EXPECT_THAT(Died(1, 0, 8), IsEmpty()) << "what followed from it";
    signal == 0 ? After(absl::Seconds(60)) : Feed(SignalReceived{signal});
    const std::vector<AgentCommand> commands = core_->Step(now_, AllGone{1, 501});
    ASSERT_EQ(commands.size(), 1u);
    const auto& exit = std::get<Exit>(commands[0]);
    EXPECT_EQ(exit.status, signal == 0 ? 69 : 130);
    EXPECT_EQ(exit.verdict.outcome(), v1::JOB_PHASE_UNSPECIFIED);
    EXPECT_EQ(exit.own.generations(), 1u);
    EXPECT_EQ(exit.own.restarts(), 3u);
    // Nothing failed for whoever cancels.
    ASSERT_EQ(exit.own.has_root_cause(), signal == 0);
    ASSERT_EQ(exit.own.earlier_size(), signal == 0 ? 0 : 1);
    const v1::Failure& failure = signal == 0 ? exit.own.root_cause() : exit.own.earlier(0);
    EXPECT_EQ(failure.rank(), 1);
    EXPECT_EQ(failure.exit().exit_code(), 7);
    EXPECT_EQ(failure.message(),
              "rank 1 (local rank 1) on n1 exited with status 7 in generation 1");
  }
}

TEST_F(AgentCoreTest, LinkLostForGood_WorkersThatWereStoppedDidNotFail) {
  Run();
  Down();
  After(absl::Seconds(60));
  EXPECT_THAT(Died(1, 1, 0, SIGTERM), IsEmpty());
  const std::vector<AgentCommand> commands = core_->Step(now_, AllGone{1, 501});
  ASSERT_EQ(commands.size(), 1u);
  EXPECT_FALSE(std::get<Exit>(commands[0]).own.has_root_cause());
}

// How the connection ended, and why there is no other.
TEST_F(AgentCoreTest, LinkLost_IsOneLineHoweverItShows) {
  Run();
  EXPECT_THAT(Down(absl::UnavailableError("socket closed")),
              ElementsAre(HasSubstr("say lost the rendezvous server at h:1: socket closed")));
  EXPECT_THAT(Down(), IsEmpty());
  After(absl::Seconds(60));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre(HasSubstr("for 1m: connection refused")));
  EXPECT_EQ(core_->NextDeadline(), MonoTime::Never());
}

// The launcher that served has been killed; it had no state that another one could go on with.
TEST_F(AgentCoreTest, ServerGoneForGood_EndsOnceAWorkerHasFailed) {
  for (const bool failed_before : {false, true}) {
    core_.emplace(Config());
    Run();
    Down(absl::UnavailableError("socket closed"));
    const Lines stops = {"stop 1 grace=5s"};
    if (failed_before) {
      Died(1, 1, 7);
      EXPECT_EQ(Down(absl::NotFoundError("it has ended")), stops);
    } else {
      EXPECT_THAT(Down(absl::NotFoundError("it has ended")), IsEmpty()) << "its workers go on";
      EXPECT_EQ(Died(1, 1, 7), stops);
    }
    const std::vector<AgentCommand> commands = core_->Step(now_, AllGone{1, 501});
    ASSERT_EQ(commands.size(), 1u);
    const auto& exit = std::get<Exit>(commands[0]);
    EXPECT_EQ(exit.status, 69);
    EXPECT_EQ(exit.message,
              "the rendezvous server at h:1 is gone, and with it how the job ended: it has ended");
    EXPECT_EQ(exit.own.root_cause().message(),
              "rank 1 (local rank 1) on n1 exited with status 7 in generation 1");
  }
}

TEST_F(AgentCoreTest, ServerGoneForGood_EndsOnceAllWorkersHaveSucceeded) {
  Run();
  Down(absl::NotFoundError("it has ended"));
  EXPECT_THAT(Died(1, 0, 0), IsEmpty());
  EXPECT_THAT(Died(1, 1, 0), ElementsAre("stop 1 grace=0"));
  EXPECT_THAT(Feed(AllGone{1, 501}),
              ElementsAre("exit 69 the rendezvous server at h:1 is gone, and with it how the job "
                          "ended: it has ended; the workers of this node had all succeeded"));
}

// Kept in their processes they would wait for a generation that never comes.
TEST_F(AgentCoreTest, ServerGoneForGood_BetweenTwoGenerations) {
  Run();
  Stop(1);
  Feed(AllGone{1, 501});
  EXPECT_THAT(Down(absl::NotFoundError("it has ended")),
              testing::IsSupersetOf({HasSubstr("exit 69 the rendezvous server at h:1 is gone")}));
}

TEST_F(AgentCoreTest, ServerGoneForGood_BeforeAnythingRan_AnotherOneIsAwaited) {
  Feed(LinkUp{});
  Welcome();
  EXPECT_THAT(Down(absl::NotFoundError("it has ended")),
              ElementsAre(HasSubstr("say waiting for the rendezvous server")));
  Feed(LinkUp{});
  EXPECT_THAT(Welcome(2), Contains("say reached the rendezvous server at h:1"));
  EXPECT_THAT(Assign(1), ElementsAre("start 1"));
}

TEST_F(AgentCoreTest, ServerGoneForGood_AnotherOneInItsPlaceIsJoined) {
  Run();
  Down(absl::NotFoundError("it has ended"));
  Feed(LinkUp{});
  EXPECT_THAT(Died(1, 1, 7), ElementsAre(HasSubstr("the server hears of it")));
  EXPECT_THAT(Welcome(2), Contains("stop 1 grace=5s"));
}

// The server came back in the last moment, after an agent that stood still had its patience run
// out.
TEST_F(AgentCoreTest, LinkBackAfterTheTimeout_LeavesAndBlamesNoWorker) {
  Run();
  Feed(LinkDown{absl::UnavailableError("away")});
  now_ = now_ + absl::Minutes(5);
  EXPECT_THAT(Feed(LinkUp{}),
              ElementsAre("up join port=0 gen=1", "up leave NODE_LOST", "stop 1 grace=5s"));
  EXPECT_THAT(Welcome(), IsEmpty());
  EXPECT_THAT(Died(1, 0, 0, SIGTERM), IsEmpty());
  EXPECT_THAT(Died(1, 1, 0, SIGTERM), IsEmpty());
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre(HasSubstr("exit 69")));
}

TEST_F(AgentCoreTest, StoppedWhileLinkIsDown_SaysSoAfterReconnecting) {
  Run();
  Stop(1);
  Down();
  EXPECT_THAT(Feed(AllGone{1, 501}), IsEmpty());
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=501 gen=0"));
  EXPECT_THAT(Welcome(), Contains("up stopped 1 port=501"));
}

TEST_F(AgentCoreTest, ServerLostItsState_StopsAndJoinsAfresh) {
  Run();
  Down();
  Feed(LinkUp{});
  EXPECT_THAT(Welcome(2), Contains("stop 1 grace=5s"));
  // The server's own generations begin anew: it hears nothing of this one but its end.
  EXPECT_THAT(StopOfServer(1, 1), IsEmpty()) << "it stops already";
  EXPECT_THAT(Died(1, 0, 0, SIGTERM), IsEmpty());
  Down();
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=0 gen=1"));
  EXPECT_THAT(Welcome(2), ElementsAre("say reached the rendezvous server at h:1"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Assign(1), ElementsAre("start 1"));
  EXPECT_THAT(StopOfServer(1, 1), ElementsAre("up stopped 1 port=0")) << "nothing of that one runs";
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
}

TEST_F(AgentCoreTest, ServerLostItsState_WhatEndedBeforeItSaysSo_IsReportedAndForgotten) {
  Run();
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
  Down();
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=0 gen=1"));
  EXPECT_THAT(Feed(AllGone{1, 501}), IsEmpty());
  EXPECT_THAT(Welcome(2), ElementsAre("say reached the rendezvous server at h:1"));
  EXPECT_THAT(StopOfServer(1, 1), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Assign(1), ElementsAre("start 1"));
}

TEST_F(AgentCoreTest, ServerLostItsState_ItsOwnOrderAfterAReconnectIsAnswered) {
  Run();
  Down();
  Feed(LinkUp{});
  Welcome(2);
  StopOfServer(1, 1);
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("up stopped 1 port=501"));
  Down();
  // The server has assigned its first generation, and given it up, while this node was away.
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=501 gen=0"));
  Welcome(2);
  EXPECT_THAT(Stop(1), ElementsAre("up stopped 1 port=501"));
}

TEST_F(AgentCoreTest, MoreNodesWait_WorkersAreAskedOnceToSave) {
  Run();
  v1::ServerMessage m;
  SetGeneration(&m, {1, 1});
  m.mutable_status()->set_generation(1);
  EXPECT_THAT(Feed(ServerSaid{m}), ElementsAre("show"));
  m.mutable_status()->set_checkpoint_wanted(true);
  EXPECT_THAT(Feed(ServerSaid{m}), ElementsAre("show", "ask for a checkpoint of 1 signal=0"));
  EXPECT_THAT(Feed(ServerSaid{m}), ElementsAre("show"));
  m.mutable_status()->set_generation(2);
  EXPECT_THAT(Feed(ServerSaid{m}), ElementsAre("show")) << "of a generation that is not here";
}

TEST_F(AgentCoreTest, SupervisorLost_LeavesAsALostNode) {
  Run();
  EXPECT_THAT(
      Feed(SupervisorLost{"cadre-supervisor, pid 7, does not read"}),
      ElementsAre("up leave NODE_LOST",
                  "exit 70 cadre-supervisor, pid 7, does not read; the workers of this node were "
                  "killed"));
}

TEST_F(AgentCoreTest, StoreRequests_TravelAndAreResent) {
  Run();
  EXPECT_THAT(Asks(7, 1, 1), ElementsAre("up store 7/1"));
  EXPECT_THAT(Asks(7, 1, 1), IsEmpty());
  EXPECT_THAT(Asks(7, 2, 1), ElementsAre("up store 7/2"));
  EXPECT_THAT(StoreSays(7, 1), ElementsAre("answer 7/1 OK"));
  EXPECT_THAT(StoreSays(7, 1), IsEmpty());
  Down();
  EXPECT_THAT(Asks(7, 3, 1), IsEmpty());
  Feed(LinkUp{});
  const Lines said = Welcome();
  EXPECT_THAT(said, testing::IsSupersetOf({"up store 7/2", "up store 7/3"}));
  EXPECT_THAT(said, testing::Not(Contains("up store 7/1")));
}

TEST_F(AgentCoreTest, StoreRequests_OfOtherGenerationsOrJobs_AreRefused) {
  EXPECT_THAT(Asks(7, 1, 0), ElementsAre("answer 7/1 ABORTED"));
  Run();
  EXPECT_THAT(Asks(7, 1, 2), ElementsAre("answer 7/1 ABORTED"));
  EXPECT_THAT(Asks(7, 1, 1, "k"), ElementsAre("answer 7/1 ABORTED"));
  Asks(7, 4, 1);
  EXPECT_THAT(Stop(1), ElementsAre("answer 7/4 ABORTED", "stop 1 grace=5s"));
  EXPECT_THAT(Asks(7, 5, 1), ElementsAre("answer 7/5 ABORTED"));
}

TEST_F(AgentCoreTest, Progress_GoesUpOncePerSecondForAllWorkersTogether) {
  Run();
  EXPECT_THAT(Progress(0, 1), ElementsAre("up progress of 1 step=1..1 slowest=0"));
  EXPECT_THAT(Progress(0, 2), IsEmpty());
  EXPECT_THAT(Progress(0, 9), IsEmpty());
  EXPECT_THAT(Progress(1, 7), IsEmpty());
  EXPECT_THAT(Progress(5, 7), IsEmpty());
  EXPECT_THAT(Progress(0, 9, 2), IsEmpty());
  EXPECT_THAT(Deadline(absl::Seconds(1)), ElementsAre("up progress of 2 step=7..9 slowest=1"));
}

TEST_F(AgentCoreTest, ProgressLeftWhenStopped_IsNotWaitedFor) {
  Run();
  Progress(0, 1);
  EXPECT_THAT(Progress(0, 2), IsEmpty());
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
  now_ = now_ + absl::Seconds(2);
  EXPECT_THAT(Feed(AgentTick{}), IsEmpty());
  EXPECT_GT(core_->NextDeadline(), now_);
}

TEST_F(AgentCoreTest, FencedNode_SaysThatTheJobWentOn) {
  Run();
  v1::ServerMessage message;
  SetGeneration(&message, {1, 1});
  message.mutable_stop()->set_reason("generation 1 went on without this node");
  message.mutable_stop()->mutable_grace()->set_seconds(5);
  message.mutable_stop()->set_fenced(true);
  EXPECT_THAT(Feed(ServerSaid{message}),
              ElementsAre(HasSubstr("say fenced: generation 1 went on without this node"),
                          "stop 1 grace=5s"));
}

TEST_F(AgentCoreTest, Status_IsShown) {
  v1::ServerMessage m;
  m.mutable_status()->set_name("j");
  EXPECT_THAT(Feed(ServerSaid{m}), ElementsAre("show"));
}

}  // namespace
}  // namespace cadre::agent
