#include "agent/cluster/core/cluster_core.h"

#include <signal.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/versions.h"

namespace cadre::agent {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Said(const v1::NodeMessage& message) {
  if (message.has_renew()) return "up renew";
  const v1::AgentReport& report = message.agent();
  if (report.has_joined()) {
    return absl::StrCat("up joined [", absl::StrJoin(report.joined().parts(), ","), "]");
  }
  if (report.has_ended()) {
    return absl::StrCat("up ended ", report.ended().id(), " ", report.ended().text(),
                        report.ended().blame() == v1::BLAME_NOBODY ? ", of nobody" : "");
  }
  if (report.has_remains()) {
    return absl::StrCat("up remains ", report.remains().id(), " ", report.remains().text());
  }
  if (report.closing()) return "up closing";
  return report.leaving() ? "up leaving" : "up ?";
}

// An agent with two GPUs; commands as text, without those that print messages.
class ClusterCoreTest : public testing::Test {
 protected:
  std::vector<std::string> Feed(const ClusterEvent& event) {
    std::vector<std::string> words;
    for (const ClusterCommand& command : core_->Step(now_, event)) {
      if (const auto* send = std::get_if<SendToServer>(&command))
        words.push_back(Said(send->message));
      if (const auto* start = std::get_if<StartLauncher>(&command)) {
        words.push_back(absl::StrCat("start ", start->start.part().id(), " gpus [",
                                     absl::StrJoin(start->gpus, ","), "]"));
        server_id_ = start->server_id;
      }
      if (const auto* stop = std::get_if<StopLauncher>(&command)) {
        words.push_back(absl::StrCat("stop ", stop->id, " ", absl::FormatDuration(stop->grace)));
      }
      if (const auto* files = std::get_if<RemoveFiles>(&command)) {
        words.push_back(absl::StrCat("remove ", files->id));
      }
      if (const auto* end = std::get_if<EndAgent>(&command)) {
        words.push_back(absl::StrCat("end ", absl::StatusCodeToString(end->status.code())));
      }
    }
    return words;
  }
  std::vector<std::string> Welcome() {
    v1::ServerMessage message;
    *message.mutable_welcome()->mutable_version() = rpc::ThisVersion();
    message.mutable_welcome()->mutable_lease()->set_seconds(9);
    return Feed(ServerMessageReceived{message});
  }
  std::vector<std::string> WelcomeOf(uint32_t minor) {
    v1::ServerMessage message;
    message.mutable_welcome()->set_server_id(7);
    message.mutable_welcome()->mutable_version()->set_minor(minor);
    return Feed(ServerMessageReceived{message});
  }
  std::vector<std::string> Start(uint64_t id, uint32_t gpus, uint64_t within = 0,
                                 bool holds = false, bool overlaps = false) {
    v1::ServerMessage message;
    v1::StartPart* start = message.mutable_agent()->mutable_start();
    start->mutable_part()->set_id(id);
    start->mutable_part()->set_gpus(gpus);
    start->mutable_part()->set_within(within);
    start->mutable_part()->set_holds(holds);
    start->mutable_spec()->mutable_slurm_step()->set_overlap(overlaps);
    start->mutable_spec()->mutable_timeouts()->mutable_stop_grace()->set_seconds(5);
    return Feed(ServerMessageReceived{message});
  }
  std::vector<std::string> Stop(uint64_t id, int after, int grace) {
    v1::ServerMessage message;
    v1::StopPart* stop = message.mutable_agent()->mutable_stop();
    stop->set_id(id);
    stop->mutable_after()->set_seconds(after);
    stop->mutable_grace()->set_seconds(grace);
    return Feed(ServerMessageReceived{message});
  }
  static LauncherEnded Ended(uint64_t id, const std::string& how) {
    v1::PartReport end;
    end.set_text(how);
    return {id, end};
  }
  std::vector<std::string> After(absl::Duration time) {
    now_ = now_ + time;
    return Feed(AgentTick{});
  }
  static ClusterCoreConfig Config() {
    ClusterCoreConfig config;
    config.node.set_node("n");
    config.gpus = {3, 5};
    return config;
  }

  void StartAnew() { core_.emplace(Config()); }

  std::optional<ClusterCore> core_{Config()};
  // The server id in the last StartLauncher, for which its token is made.
  uint64_t server_id_ = 0;
  MonoTime now_;
};

TEST_F(ClusterCoreTest, AHeldNodeRunsNothingAndIsGivenBackAtOnce) {
  Feed(LinkUp{});
  EXPECT_THAT(Start(1, 2, 0, true), IsEmpty());
  EXPECT_THAT(Start(2, 1), ElementsAre("up ended 2 the node has too few free GPUs"));
  EXPECT_THAT(Stop(1, 0, 5), ElementsAre("remove 1", "up ended 1 "));
  EXPECT_THAT(Start(3, 2), ElementsAre("start 3 gpus [3,5]"));
}

TEST_F(ClusterCoreTest, StepsUseTheGpusOfTheirBatchJob) {
  Feed(LinkUp{});
  Start(1, 2, 0, true);
  EXPECT_THAT(Start(2, 1, 1), ElementsAre("start 2 gpus [3]"));
  EXPECT_THAT(Start(3, 1, 1), ElementsAre("start 3 gpus [5]"));
  EXPECT_THAT(Start(4, 2, 1, false, true), ElementsAre("start 4 gpus [3,5]"));
  const char kTooFew[] = "its batch job has no longer what the step needs of this node";
  EXPECT_THAT(Start(5, 3, 1), ElementsAre(absl::StrCat("up ended 5 ", kTooFew, ", of nobody")));
  EXPECT_THAT(Start(6, 1, 1), ElementsAre(absl::StrCat("up ended 6 ", kTooFew, ", of nobody")));
}

// Fault (queue): Steps that overlap and steps that do not run on one node -> Two that do not never
// use the same GPU
TEST_F(ClusterCoreTest, AStepGetsAGpuOfWhichOnlyStepsThatOverlapUseAny) {
  Feed(LinkUp{});
  Start(1, 2, 0, true);
  EXPECT_THAT(Start(2, 1, 1), ElementsAre("start 2 gpus [3]"));
  EXPECT_THAT(Start(3, 1, 1, false, true), ElementsAre("start 3 gpus [5]"));
  EXPECT_THAT(Start(4, 1, 1), ElementsAre("start 4 gpus [5]"));
}

// Fault (queue): A batch job ends before one of its steps -> The GPUs that the step uses go to no
// other job until the step has ended
TEST_F(ClusterCoreTest, AGpuIsFreeOnlyWhenNoStepUsesItAnyMore) {
  Feed(LinkUp{});
  Start(1, 2, 0, true);
  Start(2, 1, 1);
  Start(3, 2, 1, false, true);
  Stop(1, 0, 5);
  EXPECT_THAT(Start(4, 1), ElementsAre("up ended 4 the node has too few free GPUs"));
  Feed(AllocationGone{3});
  EXPECT_THAT(Start(5, 1), ElementsAre("start 5 gpus [5]"));
  Feed(AllocationGone{2});
  EXPECT_THAT(Start(6, 1), ElementsAre("start 6 gpus [3]"));
}

TEST_F(ClusterCoreTest, APartIsStartedEndsAndGivesItsGpusBack) {
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up joined []"));
  EXPECT_THAT(Welcome(), IsEmpty());
  EXPECT_THAT(Start(1, 1), ElementsAre("start 1 gpus [3]"));
  EXPECT_THAT(Start(1, 1), IsEmpty()) << "it runs already";
  EXPECT_THAT(Start(2, 2), ElementsAre("up ended 2 the node has too few free GPUs"));
  EXPECT_THAT(Start(3, 1), ElementsAre("start 3 gpus [5]"));
  EXPECT_THAT(Feed(Ended(1, "exit status 0")), ElementsAre("stop 1 0"));
  EXPECT_THAT(Start(4, 1), ElementsAre("up ended 4 the node has too few free GPUs"));
  EXPECT_THAT(Feed(AllocationGone{1}), ElementsAre("remove 1", "up ended 1 exit status 0"));
  EXPECT_THAT(Feed(AllocationGone{1}), IsEmpty());
  EXPECT_THAT(Start(5, 1), ElementsAre("start 5 gpus [3]"));
  EXPECT_THAT(Feed(LauncherFailed{5, "no such user"}),
              ElementsAre("remove 5", "up ended 5 no such user"));
}

TEST_F(ClusterCoreTest, AServerOfTheVersionBeforeIsTakenAndNoOlderOne) {
  Feed(LinkUp{});
  WelcomeOf(rpc::kMinorVersion - 1);
  Start(1, 0);
  EXPECT_EQ(server_id_, 7u);
  EXPECT_THAT(WelcomeOf(rpc::kMinorVersion + 2), ElementsAre("end UNAVAILABLE"));
}

TEST_F(ClusterCoreTest, APartIsEndedWhenItsTimeIsOver) {
  Feed(LinkUp{});
  Welcome();
  Start(1, 0);
  EXPECT_THAT(Stop(1, 2, 4), IsEmpty());
  EXPECT_EQ(core_->NextDeadline(), now_ + absl::Seconds(2));
  EXPECT_THAT(After(absl::Seconds(2)), ElementsAre("stop 1 4s"));
  EXPECT_THAT(Stop(1, 0, 4), ElementsAre("stop 1 4s")) << "told again";
  EXPECT_THAT(Stop(7, 0, 4), ElementsAre("up ended 7 it does not run here"));
  EXPECT_THAT(After(absl::Seconds(1)), ElementsAre("up renew"));
}

TEST_F(ClusterCoreTest, AnEndThatTheServerDidNotHearOfCountsAsRunningUntilItIsBack) {
  Feed(LinkUp{});
  Welcome();
  Start(1, 0);
  Start(2, 0);
  Feed(LinkDown{absl::UnavailableError("gone")});
  Feed(Ended(1, "signal 9"));
  EXPECT_THAT(Feed(AllocationGone{1}), ElementsAre("remove 1"));
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up joined [2,1]", "up ended 1 signal 9"));
  // That connection ended before the Welcome.
  Feed(LinkDown{absl::UnavailableError("gone")});
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up joined [2,1]", "up ended 1 signal 9"));
  Welcome();
  Feed(LinkDown{absl::UnavailableError("gone")});
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up joined [2]"));
}

TEST_F(ClusterCoreTest, WhatOutlivesSigkillIsSaidOnce_AndAgainToAServerThatComesBack) {
  Feed(LinkUp{});
  Welcome();
  Start(1, 0);
  Feed(Ended(1, "signal 15"));
  EXPECT_THAT(Feed(AllocationUnkillable{1, "stays"}), ElementsAre("up remains 1 stays"));
  EXPECT_THAT(Feed(AllocationUnkillable{1, "stays"}), IsEmpty());
  EXPECT_THAT(Feed(AllocationUnkillable{7, "stays"}), IsEmpty());
  Feed(LinkDown{absl::UnavailableError("gone")});
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up joined [1]", "up remains 1 stays"));
  EXPECT_THAT(Feed(AllocationGone{1}), ElementsAre("remove 1", "up ended 1 signal 15"));
  Feed(LinkDown{absl::UnavailableError("gone")});
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up joined []"));
}

// Fault (queue): A cluster's agent gets SIGTERM while a job's workers save -> It stays in the
// cluster until they have ended, and takes no new jobs
TEST_F(ClusterCoreTest, ASignalEndsAllWithGrace_AndItLeavesWhenNothingRuns) {
  Feed(LinkUp{});
  Welcome();
  Start(1, 0);
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}), ElementsAre("up closing", "stop 1 15s"));
  EXPECT_THAT(Start(1, 0), IsEmpty()) << "it has not ended yet";
  EXPECT_THAT(Start(2, 0), ElementsAre("up ended 2 the agent of the node is ending, of nobody"));
  EXPECT_THAT(After(absl::Seconds(3)), ElementsAre("up renew"));
  EXPECT_THAT(After(absl::Seconds(3)), ElementsAre("up renew"));
  Feed(Ended(1, "exit status 143"));
  EXPECT_THAT(Feed(AllocationGone{1}),
              ElementsAre("remove 1", "up ended 1 exit status 143", "up leaving", "end OK"));
  EXPECT_THAT(Feed(AgentTick{}), IsEmpty());
}

TEST_F(ClusterCoreTest, ASignalEndsAnAgentOnWhichNothingRunsAtOnce) {
  Feed(LinkUp{});
  Welcome();
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}), ElementsAre("up closing", "up leaving", "end OK"));
  StartAnew();
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}), ElementsAre("end OK")) << "without a server";
}

TEST_F(ClusterCoreTest, ASignalGivesHeldNodesBackAtOnce) {
  Feed(LinkUp{});
  Welcome();
  Start(1, 2, 0, true);
  Start(2, 1, 1);
  EXPECT_THAT(Feed(SignalReceived{SIGTERM}),
              ElementsAre("up closing", "remove 1", "up ended 1 ", "stop 2 15s"));
  Feed(Ended(2, "exit status 143"));
  EXPECT_THAT(Feed(AllocationGone{2}),
              ElementsAre("remove 2", "up ended 2 exit status 143", "up leaving", "end OK"));
}

TEST_F(ClusterCoreTest, ASecondSignalEndsItAtOnceAndLeavesTheServerToItsLease) {
  Feed(LinkUp{});
  Welcome();
  Start(1, 0);
  Feed(SignalReceived{SIGINT});
  EXPECT_THAT(Feed(SignalReceived{SIGINT}), ElementsAre("end OK"));
}

// Fault (queue): The server is away while an agent that got SIGTERM ends its launchers -> The agent
// ends when they have ended, and a server that comes back meanwhile is told
TEST_F(ClusterCoreTest, AnAgentThatClosesNeedsNoServer_OneThatComesBackHearsOfIt) {
  Feed(LinkUp{});
  Welcome();
  Start(1, 0);
  Start(2, 0);
  Start(3, 0);
  Feed(SignalReceived{SIGTERM});
  Feed(LinkDown{absl::UnavailableError("gone")});
  Feed(Ended(1, "signal 15"));
  EXPECT_THAT(Feed(AllocationGone{1}), ElementsAre("remove 1"));
  EXPECT_THAT(Feed(LinkUp{}),
              ElementsAre("up joined [2,3,1]", "up closing", "up ended 1 signal 15"));
  Welcome();
  EXPECT_THAT(After(absl::Seconds(3)), ElementsAre("up renew"));
  Feed(Ended(2, "signal 15"));
  EXPECT_THAT(Feed(AllocationGone{2}), ElementsAre("remove 2", "up ended 2 signal 15"));
  Feed(LinkDown{absl::UnavailableError("gone")});
  Feed(Ended(3, "signal 15"));
  EXPECT_THAT(Feed(AllocationGone{3}), ElementsAre("remove 3", "end OK"));
}

TEST_F(ClusterCoreTest, AnAgentThatClosesEndsItsLaunchersWithGraceAlsoIfTheServerRefusesIt) {
  Feed(LinkUp{});
  Welcome();
  Start(1, 0);
  Feed(SignalReceived{SIGTERM});
  v1::ServerMessage refused;
  refused.mutable_rejected()->set_code(static_cast<int>(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(Feed(ServerMessageReceived{refused}), IsEmpty());
  EXPECT_EQ(core_->NextDeadline(), MonoTime::Never()) << "no lease is renewed any more";
  Feed(Ended(1, "signal 15"));
  EXPECT_THAT(Feed(AllocationGone{1}), ElementsAre("remove 1", "end OK"));
}

TEST_F(ClusterCoreTest, AServerThatDoesNotWantItEndsIt_OneThatGoesDoesNot) {
  Feed(LinkUp{});
  v1::ServerMessage refused;
  refused.mutable_rejected()->set_code(static_cast<int>(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(Feed(ServerMessageReceived{refused}), ElementsAre("end ALREADY_EXISTS"));
  StartAnew();
  EXPECT_THAT(Feed(LinkDown{absl::UnauthenticatedError("")}), ElementsAre("end UNAUTHENTICATED"));
  StartAnew();
  Feed(LinkUp{});
  Welcome();
  Feed(LinkDown{absl::UnavailableError("gone")});
  EXPECT_THAT(Feed(LinkDown{absl::UnauthenticatedError("another token")}), IsEmpty());
  EXPECT_THAT(Feed(LinkUp{}), ElementsAre("up joined []")) << "the link goes on trying";
}

}  // namespace
}  // namespace cadre::agent
