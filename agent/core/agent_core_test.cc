#include "agent/core/agent_core.h"

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "agent/core/agent_core_rig.h"
#include "agent/core/server_session.h"
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
using ::testing::Not;

constexpr char kStopping[] = "say stopping the job (another signal kills its workers at once)";

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
  EXPECT_THAT(
      Deadline(absl::Minutes(9)),
      ElementsAre("exit 69 the rendezvous server at h:1 could not be reached for 10m: no "
                  "route; if the job ended before this node came, only the node that ran the "
                  "server knows how"));
}

TEST_F(AgentCoreTest, ConnectedButNotWelcomed_GivesUpToo) {
  Feed(AgentTick{});
  Feed(LinkUp{});
  EXPECT_THAT(
      Deadline(kWelcomeIsLate),
      ElementsAre("say waiting for the rendezvous server at h:1: it accepted the connection "
                  "and has not answered for 5s; see its log (gives up in 9m55s)"));
  EXPECT_THAT(Deadline(absl::Minutes(10) - kWelcomeIsLate), ElementsAre(HasSubstr("exit 69")));
}

TEST_F(AgentCoreTest, ReachedAfterWaiting_IsSaidOnce) {
  Down();
  Feed(LinkUp{});
  EXPECT_THAT(Welcome(), ElementsAre("say reached the rendezvous server at h:1", "begin"));
}

TEST_F(AgentCoreTest, WelcomedFirst_BeginsByItsOwnSpecOrByTheServers) {
  v1::ServerMessage welcome;
  *welcome.mutable_welcome()->mutable_version() = rpc::ThisVersion();
  welcome.mutable_welcome()->mutable_spec()->add_command("theirs");
  AgentConfig config = Config();
  config.join.mutable_spec()->add_command("own");
  core_.emplace(config);
  Feed(LinkUp{});
  EXPECT_THAT(Feed(ServerMessageReceived{welcome}), ElementsAre("begin own"));
  EXPECT_THAT(Feed(ServerMessageReceived{welcome}), IsEmpty());
  config.join.clear_spec();
  core_.emplace(config);
  Feed(LinkUp{});
  EXPECT_THAT(Feed(ServerMessageReceived{welcome}), ElementsAre("begin theirs"));
}

TEST_F(AgentCoreTest, AServerOfAVersionTooFarAway_IsLeftWithALineThatSaysWhatToUpgrade) {
  v1::ServerMessage welcome;
  welcome.mutable_welcome()->mutable_version()->set_minor(rpc::kMinorVersion + 2);
  Feed(LinkUp{});
  EXPECT_THAT(
      Feed(ServerMessageReceived{welcome}),
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
                                  "(the workers keep running, and are stopped in 1m)"));
  EXPECT_THAT(Died(1, 0, 0), IsEmpty());
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=0 gen=1"));
  EXPECT_THAT(Welcome(), ElementsAre("say reached the rendezvous server at h:1", "up started 1/0",
                                     "up exited 1/0 OK", "up started 1/1"));
}

// Fault (server): A server without a state directory ends with its process -> Agents keep workers
// that still work for `--orphan-timeout`, then stop them and exit with 69
TEST_F(AgentCoreTest, LinkLostForTooLong_StopsOrphans) {
  Run();
  Down();
  EXPECT_THAT(Deadline(absl::Seconds(60)), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Feed(LinkUp{}), IsEmpty());
  EXPECT_THAT(Feed(AllGone{1, 501}),
              ElementsAre("exit 69 the rendezvous server at h:1 could not be reached for 1m: "
                          "connection refused"));
}

// Fault (queue): A submitted job ends while the server is away for an hour -> Its launcher tells
// the server when that is back, and the job does not run again
TEST_F(AgentCoreTest, LinkLostForLong_TheLauncherOfASubmittedJobKeepsItsResult) {
  AgentConfig config = Config();
  config.join.set_part(7);
  core_.emplace(config);
  Run();
  Down();
  Died(1, 0, 0);
  Died(1, 1, 0);
  EXPECT_THAT(After(absl::Hours(1)), IsEmpty());
  EXPECT_THAT(After(absl::Hours(23)), ElementsAre("stop 1 grace=5s"));
}

// Fault (server): A worker fails while the server is away, and the server does not return -> The
// node's own verdict names the worker
TEST_F(AgentCoreTest, LinkLostForGood_TellsWhichWorkerFailed) {
  for (const int signal : {0, SIGINT}) {
    core_.emplace(Config());
    Run();
    v1::ServerMessage status;
    status.mutable_status()->set_restarts(3);
    Feed(ServerMessageReceived{status});
    Down();
    EXPECT_THAT(Died(1, 1, 7),
                ElementsAre("say rank 1 (local rank 1) on n1 exited with status 7 in generation 1; "
                            "the server is told when it can be reached again"));
    EXPECT_THAT(Died(1, 0, 8), IsEmpty()) << "what followed from it";
    signal == 0 ? After(absl::Seconds(60)) : Feed(SignalReceived{signal});
    const std::vector<AgentCommand> commands = core_->Step(now_, AllGone{1, 501});
    ASSERT_EQ(commands.size(), 1u);
    const auto& exit = std::get<Exit>(commands[0]);
    EXPECT_EQ(exit.status, signal == 0 ? 69 : 130);
    EXPECT_EQ(exit.verdict.outcome(), v1::JOB_PHASE_UNSPECIFIED);
    EXPECT_EQ(exit.own.generations(), 1u);
    EXPECT_EQ(exit.own.restarts(), 3u);
    // A cancelled job has no root cause.
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

// The end of the connection and the reason why there is no new one may come as two errors.
TEST_F(AgentCoreTest, LinkLost_IsOneLineHoweverItShows) {
  Run();
  EXPECT_THAT(Down(absl::UnavailableError("socket closed")),
              ElementsAre(HasSubstr("say lost the rendezvous server at h:1: socket closed")));
  EXPECT_THAT(Down(), IsEmpty());
  After(absl::Seconds(60));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre(HasSubstr("for 1m: connection refused")));
  EXPECT_EQ(core_->NextDeadline(), MonoTime::Never());
}

// The launcher with the server was killed; the server's state, kept in memory, is lost.
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
              "the rendezvous server at h:1 has ended, and nothing tells how the job ended: it has "
              "ended");
    EXPECT_EQ(exit.own.root_cause().message(),
              "rank 1 (local rank 1) on n1 exited with status 7 in generation 1");
  }
}

TEST_F(AgentCoreTest, ServerGoneForGood_EndsOnceAllWorkersHaveSucceeded) {
  Run();
  Down(absl::NotFoundError("it has ended"));
  EXPECT_THAT(Died(1, 0, 0), IsEmpty());
  EXPECT_THAT(Died(1, 1, 0), ElementsAre("stop 1 grace=0"));
  EXPECT_THAT(
      Feed(AllGone{1, 501}),
      ElementsAre("exit 69 the rendezvous server at h:1 has ended, and nothing tells how "
                  "the job ended: it has ended; the workers of this node had all succeeded"));
}

// Kept workers would wait for a generation that never comes.
TEST_F(AgentCoreTest, ServerGoneForGood_BetweenTwoGenerations) {
  Run();
  Stop(1);
  Feed(AllGone{1, 501});
  EXPECT_THAT(Down(absl::NotFoundError("it has ended")),
              testing::IsSupersetOf({HasSubstr(
                  "exit 69 the rendezvous server at h:1 has ended, and nothing tells")}));
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
  EXPECT_THAT(Died(1, 1, 7), ElementsAre(HasSubstr("the server is told when")));
  EXPECT_THAT(Welcome(2), Contains("stop 1 grace=5s"));
}

// The server came back at the last moment, when the timeout of an agent that had been suspended
// ran out.
//
// Fault (server): The server returns just as an agent gives it up -> The agent leaves as a lost
// node and blames no worker
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
  // The new server numbers its generations from 1 again: it is told nothing of this one but its
  // end.
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
  // While this node was away, the server has assigned its first generation and ended it.
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=501 gen=0"));
  Welcome(2);
  EXPECT_THAT(Stop(1), ElementsAre("up stopped 1 port=501"));
}

TEST_F(AgentCoreTest, MoreNodesWait_WorkersAreAskedOnceToSave) {
  Run();
  v1::ServerMessage m;
  SetGeneration(&m, {1, 1});
  m.mutable_status()->set_generation(1);
  EXPECT_THAT(Feed(ServerMessageReceived{m}), ElementsAre("show"));
  m.mutable_status()->set_checkpoint_wanted(true);
  EXPECT_THAT(Feed(ServerMessageReceived{m}),
              ElementsAre("show", "ask for a checkpoint of 1 signal=0"));
  EXPECT_THAT(Feed(ServerMessageReceived{m}), ElementsAre("show"));
  m.mutable_status()->set_generation(2);
  EXPECT_THAT(Feed(ServerMessageReceived{m}), ElementsAre("show"))
      << "of a generation that is not here";
}

TEST_F(AgentCoreTest, SignalsOfTheServerGoToTheWorkersThatRun) {
  const auto signal = [this](uint64_t generation, int number) {
    v1::ServerMessage m;
    SetGeneration(&m, {server_id_, generation});
    m.mutable_signal()->set_signal(number);
    return Feed(ServerMessageReceived{m});
  };
  Feed(LinkUp{});
  Welcome();
  EXPECT_THAT(signal(0, SIGUSR1), IsEmpty()) << "there is no generation";
  Assign(1);
  EXPECT_THAT(signal(1, SIGUSR1), IsEmpty()) << "none has started";
  Feed(WorkerRuns{1, 1, 101});
  EXPECT_THAT(signal(1, SIGUSR1), ElementsAre(absl::StrCat("signal ", SIGUSR1, " to 1/1")));
  Feed(WorkerRuns{1, 0, 100});
  EXPECT_THAT(signal(1, 64), ElementsAre("signal 64 to 1/0,1"));
  for (const int refused : {SIGKILL, 0, -1, 65}) EXPECT_THAT(signal(1, refused), IsEmpty());
  EXPECT_THAT(signal(2, SIGUSR1), IsEmpty()) << "another generation";
  Died(1, 0, 0);
  EXPECT_THAT(signal(1, SIGUSR1), ElementsAre(absl::StrCat("signal ", SIGUSR1, " to 1/1")));
  Stop(1);
  EXPECT_THAT(signal(1, SIGUSR1), IsEmpty()) << "they are being stopped";
}

// The launcher of a batch job's script, which is worker 0.
class ScriptTest : public AgentCoreTest {
 protected:
  ScriptTest() { StartAnew(); }

  void StartAnew() {
    AgentConfig config = Config();
    config.join.set_part(12);
    core_.emplace(config);
  }
  void AssignScript() {
    Feed(LinkUp{});
    v1::ServerMessage m;
    m.mutable_welcome()->set_server_id(server_id_);
    *m.mutable_welcome()->mutable_version() = rpc::ThisVersion();
    m.mutable_welcome()->mutable_lease()->set_seconds(9);
    *m.mutable_welcome()->mutable_spec() = Config().join.spec();
    m.mutable_welcome()->mutable_spec()->mutable_batch()->set_script("#!/bin/sh\n");
    Feed(ServerMessageReceived{m});
    Assign(1, 1);
  }
  void RunScript() {
    AssignScript();
    Feed(WorkerRuns{1, 0, 100});
  }
  Lines StopBecause(v1::FailureCause cause, const std::string& reason, uint64_t generation = 1) {
    v1::ServerMessage m;
    SetGeneration(&m, {server_id_, generation});
    m.mutable_stop()->set_reason(reason);
    m.mutable_stop()->set_cause(cause);
    m.mutable_stop()->mutable_grace()->set_seconds(5);
    return Feed(ServerMessageReceived{m});
  }
  Lines FinishedBecause(v1::FailureCause cause, const std::string& message) {
    v1::ServerMessage m;
    v1::Verdict* verdict = m.mutable_finished()->mutable_verdict();
    verdict->set_outcome(v1::FAILED);
    verdict->set_exit_status(124);
    verdict->mutable_root_cause()->set_cause(cause);
    verdict->mutable_root_cause()->set_message(message);
    return Feed(ServerMessageReceived{m});
  }
};

TEST_F(ScriptTest, WhyItIsStoppedIsNotedOnceAndBeforeItIs) {
  RunScript();
  EXPECT_THAT(StopBecause(v1::CANCELLED, "cancelled: by alice"),
              ElementsAre("note 1 CANCELLED: by alice", "stop 1 grace=5s"));
  Died(1, 0, 143);
  Feed(AllGone{1, 501});
  EXPECT_THAT(FinishedBecause(v1::CANCELLED, "by alice"), ElementsAre("exit 124"));
}

TEST_F(ScriptTest, AnOlderServerSaysWhyWhenTheJobIsOver) {
  RunScript();
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
  Died(1, 0, 143);
  Feed(AllGone{1, 501});
  EXPECT_THAT(FinishedBecause(v1::TOTAL_TIMEOUT, "took longer than timeouts.total"),
              ElementsAre("note 1 TOTAL_TIMEOUT", "exit 124"));
}

TEST_F(ScriptTest, WhatGoesOnElsewhereIsNotedToo) {
  RunScript();
  EXPECT_THAT(StopBecause(v1::REQUEUED, "put back into the queue"),
              ElementsAre("note 1 REQUEUED", "stop 1 grace=5s"));
  StartAnew();
  RunScript();
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}),
              AllOf(Contains("note 1 PREEMPTED"), Contains("stop 1 grace=5s")));
}

TEST_F(ScriptTest, ItsOwnEndIsNotNoted) {
  RunScript();
  EXPECT_THAT(StopBecause(v1::CRASH, "it failed"), ElementsAre("stop 1 grace=5s"));
  Feed(AllGone{1, 501});
  EXPECT_THAT(FinishedBecause(v1::CRASH, "it failed"), ElementsAre("exit 124"));
}

TEST_F(ScriptTest, BeforeItRunsNothingIsNoted) {
  AssignScript();
  EXPECT_THAT(StopBecause(v1::CANCELLED, "cancelled"), ElementsAre("stop 1 grace=5s"));
}

TEST_F(AgentCoreTest, WhyWorkersAreStoppedIsNotNotedInTheirOutput) {
  Run();
  v1::ServerMessage m;
  SetGeneration(&m, {server_id_, 1});
  m.mutable_stop()->set_cause(v1::CANCELLED);
  m.mutable_stop()->mutable_grace()->set_seconds(5);
  EXPECT_THAT(Feed(ServerMessageReceived{m}), ElementsAre("stop 1 grace=5s"));
}

// Fault (node): The supervisor is killed and no other one can be started -> The agent exits with
// 70, and its node is lost; both say why
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

// Fault (node): A node that was declared lost reconnects -> Its launcher says that it was fenced
// and stops its old workers; the node becomes a spare or a member of the next generation
TEST_F(AgentCoreTest, FencedNode_SaysThatTheJobWentOn) {
  Run();
  v1::ServerMessage message;
  SetGeneration(&message, {1, 1});
  message.mutable_stop()->set_reason("generation 1 went on without this node");
  message.mutable_stop()->mutable_grace()->set_seconds(5);
  message.mutable_stop()->set_fenced(true);
  EXPECT_THAT(Feed(ServerMessageReceived{message}),
              ElementsAre(HasSubstr("say fenced: generation 1 went on without this node"),
                          "stop 1 grace=5s"));
}

TEST_F(AgentCoreTest, Status_IsShown) {
  v1::ServerMessage m;
  m.mutable_status()->set_name("j");
  EXPECT_THAT(Feed(ServerMessageReceived{m}), ElementsAre("show"));
}

// The agent is told to stop by a user, or by a scheduler.
class SignalsTest : public AgentCoreTest {
 protected:
  // The server reports the job's generation.
  void JobIsIn(uint64_t generation, v1::JobPhase phase = v1::RUNNING, uint64_t ended = 0) {
    v1::ServerMessage status;
    status.mutable_status()->set_generation(generation);
    status.mutable_status()->set_phase(phase);
    status.mutable_status()->set_ended_generation(ended);
    EXPECT_THAT(Feed(ServerMessageReceived{status}), ElementsAre("show"));
  }
};

TEST_F(SignalsTest, FirstSignal_CancelsTheJobThroughTheServer) {
  Run();
  EXPECT_THAT(Feed(SignalReceived{SIGINT}), ElementsAre(kStopping, "up cancel 2"));
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Finished(v1::CANCELLED_PHASE, 130), ElementsAre("exit 130"));
}

TEST_F(SignalsTest, Warning_PreemptsTheJobOnce) {
  Run();
  EXPECT_THAT(Feed(SignalReceived{kWarningSignal}),
              ElementsAre("say the scheduler warns that it takes the nodes away: the job ends now, "
                          "and can be continued later",
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
                          "(timeouts.stop_grace)",
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
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}), ElementsAre(kStopping, "stop 1 grace=5s"));
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}), ElementsAre("stop 1 grace=0"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("exit 143"));
}

TEST_F(SignalsTest, SignalBeforeAnyServer_LeavesAtOnce) {
  Down();
  EXPECT_THAT(Feed(SignalReceived{SIGINT}), ElementsAre(kStopping, "exit 130"));
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
  *welcome.mutable_welcome()->mutable_version() = rpc::ThisVersion();
  *welcome.mutable_welcome()->mutable_spec() = Config().join.spec();
  welcome.mutable_welcome()->mutable_spec()->mutable_nodes()->set_min(1);
  welcome.mutable_welcome()->mutable_spec()->mutable_nodes()->set_max(3);
  Feed(ServerMessageReceived{welcome});
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}),
              ElementsAre(HasSubstr("say preempted"), "up leave PREEMPTED", "stop 1 grace=5s"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("exit 143"));
}

// Fault (node): A node of an elastic job gets SIGTERM before the server has admitted it -> The job
// goes on as if the node had not joined
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
  // No generation yet; an earlier job of this name has had three.
  Feed(LinkUp{});
  Welcome();
  JobIsIn(3, v1::GATHERING);
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}), Contains("up cancel 15"));
  // Between two generations.
  core_.emplace(Config());
  Run();
  Stop(1);
  JobIsIn(1, v1::GATHERING, 1);
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}), Contains("up cancel 15"));
  // While the generation before is still being stopped.
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

// Workers that are kept when their generation is stopped.

// Generation 1 with three workers, all of which can rejoin.
class RejoinTest : public AgentCoreTest {
 protected:
  void SetUp() override {
    Feed(LinkUp{});
    Welcome();
    ASSERT_THAT(Assign(1, 3), ElementsAre("start 1"));
    for (uint32_t i = 0; i < 3; ++i) {
      Feed(WorkerRuns{1, i, static_cast<int32_t>(100 + i)});
      ASSERT_THAT(Feed(WorkerMayRejoin{1, i, true}), IsEmpty());
    }
  }

  // Worker 2 is killed; the others are to rejoin.
  void LoseOne() {
    EXPECT_THAT(Died(1, 2, 0, 9), ElementsAre("up exited 1/2 CRASH"));
    EXPECT_THAT(StopToRejoin(1), ElementsAre("stop 1 grace=5s keep 0,1"));
  }
};

TEST_F(RejoinTest, TheOthersWait_AndOnlyTheMissingOneIsStarted) {
  LoseOne();
  EXPECT_THAT(Waits(1, 0), IsEmpty());
  EXPECT_THAT(Feed(AllGone{1, 501, {0, 1}}), IsEmpty());
  EXPECT_THAT(Waits(1, 1), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Assign(2, 3), ElementsAre("start 2 keep 0,1", "up started 2/0 rejoined",
                                        "up started 2/1 rejoined"));
  EXPECT_THAT(Feed(WorkerRuns{2, 2, 110}), ElementsAre("up started 2/2"));
  // In the new generation, workers must report again that they can rejoin.
  EXPECT_THAT(StopToRejoin(2), ElementsAre("stop 2 grace=5s"));
}

TEST_F(RejoinTest, AWorkerThatCameBeforeTheOrder_Waits) {
  EXPECT_THAT(Waits(1, 1), IsEmpty());
  EXPECT_THAT(Died(1, 2, 0, 9), ElementsAre("up exited 1/2 CRASH"));
  EXPECT_THAT(Waits(1, 0), IsEmpty());
  EXPECT_THAT(StopToRejoin(1), ElementsAre("stop 1 grace=5s keep 0,1"));
  EXPECT_THAT(Feed(AllGone{1, 501, {0, 1}}), ElementsAre("up stopped 1 port=501"));
}

TEST_F(RejoinTest, WhoCannotRejoin_IsStoppedAsEver) {
  Feed(WorkerMayRejoin{1, 0, false});
  EXPECT_THAT(StopToRejoin(1, /*replace=*/{1}), ElementsAre("stop 1 grace=5s keep 2"));
  Waits(1, 2);
  EXPECT_THAT(Feed(AllGone{1, 501, {2}}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Assign(2, 3), ElementsAre("start 2 keep 2", "up started 2/2 rejoined"));
}

TEST_F(RejoinTest, AnOrderWithoutRejoin_StopsAll) {
  Waits(1, 0);
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Assign(2, 3), ElementsAre("start 2"));
}

TEST_F(RejoinTest, WhoDoesNotComeInTime_IsReplaced) {
  LoseOne();
  Waits(1, 0);
  Feed(AllGone{1, 501, {0, 1}});
  EXPECT_THAT(
      After(absl::Seconds(5)),
      testing::IsSupersetOf({"say rank 1 (local rank 1, pid 101) was told to leave "
                             "generation 1 and has not done so after 5s: it is killed and replaced",
                             "stop 1 grace=0 keep 0"}));
  // An AllGone of the earlier stop does not cover the worker that is stopped now.
  EXPECT_THAT(Feed(AllGone{1, 501, {0, 1}}), IsEmpty());
  EXPECT_THAT(Died(1, 1, 0, 9), ElementsAre("up exited 1/1 CRASH late"));
  EXPECT_THAT(Feed(AllGone{1, 501, {0}}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Assign(2, 3), ElementsAre("start 2 keep 0", "up started 2/0 rejoined"));
}

TEST_F(RejoinTest, WhoIsAskedFor_SaysWhoHasNotCome) {
  EXPECT_THAT(Inspect(1), ElementsAre("look 1 overdue="));
  EXPECT_THAT(Found({0, 1, 2}), ElementsAre("up evidence 0 1 2"));
  Feed(EvidenceDone{1});
  LoseOne();
  Waits(1, 0);
  Feed(AllGone{1, 501, {0, 1}});
  Waits(1, 1);
  Assign(2, 3);
  Feed(WorkerRuns{2, 2, 110});
  Inspect(2);
  EXPECT_THAT(Found({0, 1, 2}, 2), ElementsAre("up evidence 0 1 2 absent"));
  Feed(EvidenceDone{2});
  Feed(WorkerMayRejoin{2, 2, true});
  Inspect(2);
  EXPECT_THAT(Found({0, 1, 2}, 2), ElementsAre("up evidence 0 1 2"));
}

TEST_F(RejoinTest, WhoDiesWhileTheOthersCome_IsReplaced) {
  LoseOne();
  Waits(1, 0);
  EXPECT_THAT(Died(1, 1, 0, 11), ElementsAre("stop 1 grace=5s keep 0", "up exited 1/1 CRASH"));
  EXPECT_THAT(Feed(AllGone{1, 501, {0}}), ElementsAre("up stopped 1 port=501"));
  // The last one dies too, while the server gathers nodes.
  EXPECT_THAT(Died(1, 0, 0, 11), ElementsAre("stop 1 grace=0"));
  EXPECT_THAT(Assign(2, 3), ElementsAre("start 2"));
  EXPECT_THAT(Feed(AllGone{1, 502}), IsEmpty());
}

TEST_F(RejoinTest, NobodyEndsTheGeneration_TheServerIsTold) {
  EXPECT_THAT(Waits(1, 1), IsEmpty());
  EXPECT_THAT(Deadline(absl::Milliseconds(500)), ElementsAre("up gave_up 1/1 a peer is gone"));
  EXPECT_THAT(After(absl::Seconds(1)), IsEmpty());
  // The report is repeated on a new connection.
  Down();
  Feed(LinkUp{});
  EXPECT_THAT(Welcome(), testing::Contains("up gave_up 1/1 a peer is gone"));
}

TEST_F(RejoinTest, TheJobEndsWhileTheyWait_TheyAreStopped) {
  LoseOne();
  Waits(1, 0);
  Waits(1, 1);
  ASSERT_THAT(Feed(AllGone{1, 501, {0, 1}}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Finished(v1::FAILED, 7), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("exit 7"));
}

TEST_F(RejoinTest, TheJobEndsBeforeTheyCome_TheyAreStopped) {
  LoseOne();
  EXPECT_THAT(Finished(v1::CANCELLED_PHASE, 130), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Feed(AllGone{1, 501, {0, 1}}), IsEmpty());
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("exit 130"));
}

TEST_F(RejoinTest, TheServerForgetsUsWhileTheyWait_TheyAreStopped) {
  LoseOne();
  Waits(1, 0);
  Waits(1, 1);
  Feed(AllGone{1, 501, {0, 1}});
  Down();
  // For this server no process of its generations runs here.
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=501 gen=0"));
  EXPECT_THAT(Welcome(/*server_id=*/2), testing::Contains("stop 1 grace=5s"));
  // It never knew that generation, and may have assigned one of the same number.
  EXPECT_THAT(Assign(1, 3), IsEmpty());
  Down();
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=0 gen=1")) << "of the other server";
  EXPECT_THAT(Welcome(/*server_id=*/2), ElementsAre("say reached the rendezvous server at h:1"))
      << "its own first generation did not run here";
  // The Assign was lost with its connection; the server repeats it.
  EXPECT_THAT(Feed(AllGone{1, 502}), IsEmpty());
  EXPECT_THAT(Assign(1, 3), ElementsAre("start 1"));
}

TEST_F(RejoinTest, TheServerForgetsUs_WhoBeganToWaitAfterTheJoinIsReported) {
  LoseOne();
  Down();
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=0 gen=1"));
  Waits(1, 0);
  Waits(1, 1);
  EXPECT_THAT(Feed(AllGone{1, 501, {0, 1}}), IsEmpty());
  EXPECT_THAT(Welcome(/*server_id=*/2), testing::Contains("stop 1 grace=5s"));
  EXPECT_THAT(StopOfServer(1, 1), IsEmpty()) << "their end is the answer";
  EXPECT_THAT(Feed(AllGone{1, 502}), ElementsAre("up stopped 1 port=502"));
  EXPECT_THAT(Assign(1, 3), ElementsAre("start 1"));
}

// The server's first generation is over before this node could start it.
TEST_F(RejoinTest, TheServerForgetsUsAndStopsItsOwn_ThatIsNotStartedAnyMore) {
  LoseOne();
  Waits(1, 0);
  Waits(1, 1);
  Feed(AllGone{1, 501, {0, 1}});
  Down();
  Feed(LinkUp{});
  EXPECT_THAT(Welcome(/*server_id=*/2), testing::Contains("stop 1 grace=5s"));
  EXPECT_THAT(Assign(1, 3), IsEmpty());
  EXPECT_THAT(Stop(1), ElementsAre("up stopped 1 port=0"));
  EXPECT_THAT(Feed(AllGone{1, 502}), IsEmpty());
  EXPECT_THAT(Assign(2, 3), ElementsAre("start 2"));
}

TEST_F(RejoinTest, WhoWaitsWhileTheStopWaitsForALook_DoesNotEndTheGeneration) {
  LoseOne();
  Waits(1, 0);
  Waits(1, 1);
  Feed(AllGone{1, 501, {0, 1}});
  Assign(2, 3);
  Feed(WorkerRuns{2, 2, 110});
  EXPECT_THAT(Inspect(2), ElementsAre("look 2 overdue="));
  EXPECT_THAT(Stop(2), IsEmpty());
  EXPECT_THAT(Waits(2, 1), IsEmpty()) << "the others still run";
  EXPECT_THAT(Feed(EvidenceDone{2}), ElementsAre("stop 2 grace=5s"));
  EXPECT_THAT(Feed(AllGone{2, 501}), ElementsAre("up stopped 2 port=501"));
}

TEST_F(RejoinTest, AGenerationThatNeverStartedHere_ChangesNothingForThem) {
  LoseOne();
  Waits(1, 0);
  Waits(1, 1);
  Feed(AllGone{1, 501, {0, 1}});
  EXPECT_THAT(StopToRejoin(2), ElementsAre("up stopped 2 port=501"));
  EXPECT_THAT(Died(1, 1, 0, 9), ElementsAre("stop 1 grace=0 keep 0"));
  EXPECT_THAT(Assign(3, 3), ElementsAre("start 3 keep 0", "up started 3/0 rejoined"));
}

TEST_F(RejoinTest, WhoWaitsDoesNotHang) {
  LimitProgress(/*silence_seconds=*/30);
  Waits(1, 0);
  Waits(1, 1);
  Waits(1, 2);
  for (const std::string& line : After(absl::Seconds(40))) {
    EXPECT_THAT(line, testing::Not(HasSubstr("look")));
  }
}

// The server blames the rank that is furthest behind.
TEST_F(RejoinTest, WhoWaitsIsNotEvidenceOfAHang) {
  LimitProgress();
  Progress(0, 1);
  Progress(1, 2);
  Waits(1, 0);
  EXPECT_THAT(After(absl::Seconds(60)), testing::Contains("look 1 overdue=1"));
  EXPECT_THAT(Found({0, 1, 2}), ElementsAre("up evidence of a hang 1! 2"));
}

// Processes that SIGKILL does not end.

class RemainsTest : public AgentCoreTest {
 protected:
  // Its worker 1 outlives SIGKILL after a stop order.
  void RunAndRemain() {
    Run();
    EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
    EXPECT_THAT(Died(1, 0, 0, 9), ElementsAre("up exited 1/0 CRASH"));
    EXPECT_THAT(Remains(1, 1), ElementsAre(kSaid, "up remains 1/1"));
  }

  static constexpr char kSaid[] =
      "say rank 1 (local rank 1) outlives SIGKILL: pid 77 is in nfs_wait (state D); only the file "
      "system or device that it waits for, or a restart of the machine, ends it; until then this "
      "launcher starts no workers";
  static constexpr char kGone[] =
      "say the processes that SIGKILL had not ended are gone: this node can take part in the job "
      "again";
};

TEST_F(RemainsTest, TheNodeSaysSo_StaysConnected_AndIsBackWhenTheyAreGone) {
  RunAndRemain();
  EXPECT_THAT(After(absl::Minutes(10)), ElementsAre("up renew"));
  EXPECT_THAT(Assign(2), IsEmpty()) << "of a server that does not know such nodes";
  EXPECT_THAT(Died(1, 1, 0, 9), ElementsAre("up exited 1/1 CRASH"));
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre(kGone, "up stopped 1 port=501", "start 2"));
}

TEST_F(RemainsTest, AServerThatComesBackIsToldAgain_AsLongAsItIsSo) {
  RunAndRemain();
  Down();
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=0 gen=1"));
  EXPECT_THAT(Welcome(), Contains("up remains 1/1"));
  Down();
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre(kGone));
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=501 gen=0"));
  const Lines said = Welcome();
  EXPECT_THAT(said, Contains("up stopped 1 port=501"));
  EXPECT_THAT(said, Not(Contains("up remains 1/1")));
}

// Fault (server): A worker survives SIGKILL, and the server loses its state -> The node tells the
// new server why it does not join
TEST_F(RemainsTest, AServerThatLostItsStateHearsWhyTheNodeDoesNotCome) {
  RunAndRemain();
  Down();
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up join port=0 gen=1"));
  EXPECT_THAT(Welcome(2), Contains("up remains 1/1"));
  EXPECT_THAT(Remains(1, 0), Contains("up remains 1/0"));
}

TEST_F(RemainsTest, AreSaidOnce_AndNothingWentOnWithoutTheNode) {
  RunAndRemain();
  EXPECT_THAT(Remains(1, 1), IsEmpty()) << "the supervisor tells whoever asks for a stop";
  v1::ServerMessage stop;
  SetGeneration(&stop, {1, 1});
  stop.mutable_stop()->set_fenced(true);
  stop.mutable_stop()->set_reason("generation 1 went on without this node");
  EXPECT_THAT(Feed(ServerMessageReceived{stop}), Not(Contains(HasSubstr("say fenced"))));
}

TEST_F(RemainsTest, WhatAnEndedWorkerStartedRemainsToo) {
  Run();
  EXPECT_THAT(Died(1, 1, 7), ElementsAre("up exited 1/1 CRASH"));
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Remains(1, 1), ElementsAre(kSaid, "up remains 1/1"));
  EXPECT_THAT(Remains(1, 5), IsEmpty()) << "there is no such worker";
  EXPECT_THAT(Remains(2, 1), IsEmpty());
}

TEST_F(RemainsTest, KeptWorkersWouldWaitInVain) {
  Run();
  Feed(WorkerMayRejoin{1, 0, true});
  EXPECT_THAT(StopToRejoin(1), ElementsAre("stop 1 grace=5s keep 0"));
  Waits(1, 0);
  EXPECT_THAT(Remains(1, 1), ElementsAre("stop 1 grace=0", kSaid, "up remains 1/1"));
  EXPECT_THAT(Feed(AllGone{1, 501, {0}}), IsEmpty()) << "of the order before";
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre(kGone, "up stopped 1 port=501"));
}

TEST_F(RemainsTest, WhoWaitsForTheNextAssignmentAndRemains_GetsNone) {
  Run();
  Feed(WorkerMayRejoin{1, 1, true});
  EXPECT_THAT(StopToRejoin(1), ElementsAre("stop 1 grace=5s keep 1"));
  Waits(1, 1);
  EXPECT_THAT(Feed(AllGone{1, 501, {1}}), ElementsAre("up stopped 1 port=501"));
  EXPECT_THAT(Remains(1, 1), ElementsAre("stop 1 grace=0", kSaid, "up remains 1/1"));
  EXPECT_THAT(Assign(2, 2), IsEmpty());
  EXPECT_THAT(Feed(AllGone{1, 501}), Contains("start 2"));
}

TEST_F(RemainsTest, AJobThatEndsTakesNoNodeBack) {
  RunAndRemain();
  EXPECT_THAT(Finished(v1::FAILED, 1), IsEmpty());
  EXPECT_THAT(Feed(AllGone{1, 501}), ElementsAre("exit 1"));
}

TEST_F(RemainsTest, AJobThatEndsDoesNotWaitForThem) {
  RunAndRemain();
  EXPECT_THAT(Finished(v1::FAILED, 1), IsEmpty());
  EXPECT_THAT(Deadline(absl::Seconds(7)), ElementsAre(HasSubstr("exit 1 some processes")));
}

// An agent that adopts the workers of an incarnation that died.

// Two workers of generation 3 are adopted; the supervisor has reported them.
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
                                         "generation 3; the server is told when it can be "
                                         "reached again"));
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
  EXPECT_THAT(Feed(ServerMessageReceived{stop}), Contains("stop 3 grace=0"));
  EXPECT_THAT(Feed(AllGone{3, 501}), ElementsAre("up stopped 3 port=501"));
  EXPECT_THAT(Assign(5), ElementsAre("start 5"));
}

// Fault (worker): The launcher dies while workers are being stopped, with `--adopt-timeout` -> The
// next launcher continues the stop with the rest of the grace, and workers that it ended are no
// failures
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
  EXPECT_THAT(Feed(ServerMessageReceived{refused}),
              ElementsAre("exit 64 the rendezvous server at h:1 refuses this node: the spec "
                          "differs; the workers that it was to take over keep running"));
}

// Fault (versions): A launcher that wants to take over running workers is too many versions away
// from the server -> It is refused, and the workers keep running
TEST_F(AdoptionTest, ByAServerOfAVersionTooFarAwayToo) {
  v1::ServerMessage welcome;
  welcome.mutable_welcome()->mutable_version()->set_minor(9);
  Feed(LinkUp{});
  EXPECT_THAT(Feed(ServerMessageReceived{welcome}),
              ElementsAre(testing::AllOf(testing::HasSubstr("only minor versions next to each"),
                                         testing::HasSubstr("was to take over keep running"))));
}

TEST_F(AdoptionTest, WithTheWrongTokenToo_ButAJobThatIsOverHasNone) {
  EXPECT_THAT(Feed(LinkDown{absl::UnauthenticatedError("wrong")}),
              ElementsAre(testing::HasSubstr("was to take over keep running")));
  AgentConfig config = Config();
  config.adopted = AdoptedWorkers{{1, 3}, 2, MonoTime()};
  core_.emplace(std::move(config));
  v1::ServerMessage over;
  over.mutable_rejected()->set_code(static_cast<int>(absl::StatusCode::kFailedPrecondition));
  Feed(LinkUp{});
  EXPECT_THAT(Feed(ServerMessageReceived{over}), ElementsAre("stop 3 grace=5s"));
}

TEST_F(AdoptionTest, AServerThatLostItsStateMeanwhile) {
  Feed(LinkUp{});
  EXPECT_THAT(
      Welcome(2),
      ElementsAre("begin",
                  "say the server lost its state: this node stops its workers and joins again",
                  "stop 3 grace=5s"));
}

TEST_F(AdoptionTest, AServerThatIsAwayIsWaitedForAsLongAsByAnyAgentWithWorkers) {
  EXPECT_THAT(Deadline(absl::Seconds(60)), ElementsAre("stop 3 grace=5s"));
}

TEST_F(AdoptionTest, ASignalBeforeItIsConnected_CancelsTheJob) {
  EXPECT_THAT(Feed(SignalReceived{SIGINT}), ElementsAre(kStopping));
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
