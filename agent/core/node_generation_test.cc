#include "agent/core/node_generation.h"

#include <errno.h>
#include <signal.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/core/worker_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/versions.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Phase = NodeGeneration::Phase;

constexpr MonoTime At(int64_t seconds) { return MonoTime::FromMicros(seconds * 1000000); }

class GenerationTest : public testing::Test {
 protected:
  void SetUp() override {
    v1::Assign assign;
    assign.set_local_world_size(2);
    generation_.Start(At(0), {7, 1}, assign, true);
    generation_.OnRuns({1, 0, 100}, At(1), true);
    generation_.OnRuns({1, 1, 101}, At(1), true);
    out_.Take();
  }
  // The stops that were ordered.
  std::vector<std::string> Stops() {
    std::vector<std::string> stops;
    for (const AgentCommand& command : out_.Take()) {
      const auto* stop = std::get_if<StopWorkers>(&command);
      if (stop == nullptr) continue;
      stops.push_back(absl::StrCat(absl::FormatDuration(stop->grace), " keep ",
                                   absl::StrJoin(stop->kept, ",")));
    }
    return stops;
  }

  CommandBuffer out_{"j", 1};
  NodeGeneration generation_{out_};
};

TEST_F(GenerationTest, Stopped_EndsWhenAllIsGone) {
  generation_.Stop(At(2), absl::Seconds(5), {}, "", false);
  EXPECT_THAT(Stops(), ElementsAre("5s keep "));
  EXPECT_TRUE(generation_.StopsAll());
  EXPECT_FALSE(generation_.EndIfStopped());
  EXPECT_FALSE(generation_.OnAllGone({2, 500})) << "another generation";
  EXPECT_TRUE(generation_.OnAllGone({1, 500}));
  EXPECT_TRUE(generation_.EndIfStopped());
  EXPECT_EQ(generation_.phase(), Phase::kIdle);
  EXPECT_FALSE(generation_.RunningId().exists());
  EXPECT_EQ(generation_.id(), (GenerationId{7, 1}));
}

TEST_F(GenerationTest, StopThatWaitsForALook_GoesOutWithItsEnd) {
  generation_.Stop(At(2), absl::Seconds(5), {}, "", true);
  EXPECT_THAT(Stops(), IsEmpty());
  generation_.OnProbeEnded(At(3));
  EXPECT_THAT(Stops(), ElementsAre("5s keep "));
  generation_.OnProbeEnded(At(4));
  EXPECT_THAT(Stops(), IsEmpty());
}

// Workers get the stop order when the probe is over, which may take longer than their grace.
TEST_F(GenerationTest, StopThatWaitsForALook_LeavesTheKeptTheirWholeTime) {
  generation_.Stop(At(2), absl::Seconds(3), {1}, "", true);
  EXPECT_EQ(generation_.Deadline(true), MonoTime::Never());
  generation_.OnProbeEnded(At(6));
  EXPECT_THAT(Stops(), ElementsAre("3s keep 1"));
  EXPECT_EQ(generation_.Deadline(true), At(9));
}

TEST_F(GenerationTest, Kept_WaitForTheNextOne) {
  generation_.Stop(At(2), absl::Seconds(5), {1}, "", false);
  generation_.OnAllGone({1, 500, {1}});
  EXPECT_FALSE(generation_.EndIfStopped());
  EXPECT_TRUE(generation_.OnWaits({1, 1, "why"}, At(3)));
  EXPECT_FALSE(generation_.OnWaits({1, 1, "why"}, At(3)));
  EXPECT_TRUE(generation_.EndIfStopped());
  EXPECT_EQ(generation_.phase(), Phase::kHolding);
  v1::Assign assign;
  assign.set_local_world_size(2);
  generation_.Start(At(4), {7, 2}, assign, true);
  EXPECT_TRUE(generation_.workers().at(1).rejoined);
  EXPECT_EQ(generation_.workers().at(1).pid, 101);
  EXPECT_EQ(generation_.workers().at(0).pid, 0);
}

TEST_F(GenerationTest, WhoDoesNotComeInTime_IsStoppedToo) {
  generation_.Stop(At(2), absl::Seconds(5), {0, 1}, "", false);
  generation_.OnWaits({1, 1, "why"}, At(3));
  Stops();
  EXPECT_EQ(generation_.Deadline(true), At(7));
  generation_.OnDeadlines(At(7), true, absl::Seconds(5));
  EXPECT_THAT(Stops(), ElementsAre("0 keep 1"));
  EXPECT_TRUE(generation_.OnDied({1, 0, {}}, At(7), "n", ""));
  EXPECT_TRUE(generation_.workers().at(0).exit.late());
}

TEST_F(GenerationTest, OnlyTheFirstFailureOfARunningGeneration_IsKept) {
  v1::WorkerExit exit;
  exit.set_exit_code(3);
  EXPECT_TRUE(generation_.OnDied({1, 1, exit}, At(2), "n", ""));
  EXPECT_FALSE(generation_.OnDied({1, 1, exit}, At(2), "n", "")) << "told twice";
  exit.set_exit_code(4);
  EXPECT_TRUE(generation_.OnDied({1, 0, exit}, At(2), "n", ""));
  ASSERT_TRUE(generation_.failure().has_value());
  EXPECT_EQ(generation_.failure()->exit().exit_code(), 3);
}

TEST_F(GenerationTest, WhoIsFenced_DidNotFail) {
  generation_.SetFenced();
  v1::WorkerExit exit;
  exit.set_signal(SIGKILL);
  EXPECT_TRUE(generation_.OnDied({1, 0, exit}, At(2), "n", "no answer"));
  EXPECT_FALSE(generation_.failure().has_value());
  EXPECT_EQ(generation_.workers().at(0).exit.cause(), v1::NODE_LOST);
  EXPECT_EQ(generation_.workers().at(0).exit.exit().ended_with(), "no answer");
}

TEST_F(GenerationTest, AWorkerThatIsNotHere_IsIgnored) {
  generation_.OnRuns({1, 9, 100}, At(2), true);
  EXPECT_FALSE(generation_.OnDied({1, 9, {}}, At(2), "n", ""));
  EXPECT_EQ(generation_.workers().size(), 2u);
}

TEST_F(GenerationTest, WhatWasImportedIsSaidAndSaidAgainOnANewConnection) {
  v1::ProgramImports imports;
  imports.set_worker_us(1800000);
  out_.set_connected(true);
  generation_.OnImported({2, imports}, At(1), true);
  EXPECT_THAT(out_.Take(), IsEmpty()) << "another generation";
  generation_.OnImported({1, imports}, At(1), false);
  EXPECT_THAT(out_.Take(), IsEmpty());
  generation_.Resync(true);
  int64_t said = 0;
  for (const AgentCommand& command : out_.Take()) {
    const auto* up = std::get_if<SendToServer>(&command);
    if (up != nullptr && up->message.has_imports()) said = up->message.imports().worker_us();
  }
  EXPECT_EQ(said, 1800000);
}

WorkerState After(std::initializer_list<WorkerEvent> events) {
  Worker worker;
  for (const WorkerEvent event : events) worker.Apply(event);
  return worker.state;
}

TEST(Worker, GivesItsGenerationUp_AlsoBeforeItsProcessIsKnown) {
  EXPECT_EQ(After({WorkerEvent::kRuns, WorkerEvent::kWaits}), WorkerState::kWaits);
  EXPECT_EQ(After({WorkerEvent::kWaits, WorkerEvent::kRuns}), WorkerState::kWaits);
  EXPECT_EQ(After({WorkerEvent::kCanRejoin, WorkerEvent::kRuns}), WorkerState::kCanRejoin);
}

TEST(Worker, TheServerIsToldOncePerConnection) {
  EXPECT_EQ(After({WorkerEvent::kWaits, WorkerEvent::kServerTold}), WorkerState::kGaveUp);
  EXPECT_EQ(After({WorkerEvent::kWaits, WorkerEvent::kServerTold, WorkerEvent::kServerIsBack}),
            WorkerState::kWaits);
  EXPECT_EQ(After({WorkerEvent::kRuns, WorkerEvent::kServerTold}), WorkerState::kRunning);
}

TEST(Worker, WhoIsLateStaysLate_AndWhoWaitsIsNotLate) {
  EXPECT_EQ(After({WorkerEvent::kRuns, WorkerEvent::kTooLate, WorkerEvent::kWaits}),
            WorkerState::kLate);
  EXPECT_EQ(After({WorkerEvent::kWaits, WorkerEvent::kTooLate}), WorkerState::kWaits);
}

TEST(Worker, WhatSigkillDoesNotEndRemainsUntilItExits) {
  for (int event = 0; event < kWorkerEvents; ++event) {
    const auto next = static_cast<WorkerEvent>(event);
    EXPECT_EQ(Next(WorkerState::kUnkillable, next),
              next == WorkerEvent::kExits ? WorkerState::kExited : WorkerState::kUnkillable);
  }
  EXPECT_EQ(After({WorkerEvent::kTooLate, WorkerEvent::kUnkillable}), WorkerState::kUnkillable);
}

TEST(Worker, NothingFollowsAnExit) {
  for (int state = 0; state < kWorkerStates; ++state) {
    EXPECT_EQ(Next(static_cast<WorkerState>(state), WorkerEvent::kExits), WorkerState::kExited);
  }
  for (int event = 0; event < kWorkerEvents; ++event) {
    EXPECT_EQ(Next(WorkerState::kExited, static_cast<WorkerEvent>(event)), WorkerState::kExited);
  }
}

TEST(WorkersToKeep, ThoseThatCanRejoin_ButNotWhoIsToBeReplaced) {
  Workers workers;
  workers[0].state = WorkerState::kRunning;
  workers[1].state = WorkerState::kCanRejoin;
  workers[2].state = WorkerState::kGaveUp;
  workers[3].state = WorkerState::kWaits;
  workers[4].state = WorkerState::kExited;
  v1::Stop stop;
  EXPECT_THAT(WorkersToKeep(workers, stop), IsEmpty());
  stop.set_rejoin(true);
  stop.add_replace(3);
  EXPECT_THAT(WorkersToKeep(workers, stop), ElementsAre(1, 2));
}

TEST(SumOfProgress, NamesTheSlowest_AndCountsWhoReports) {
  Workers workers;
  for (uint32_t i = 0; i < 3; ++i) workers[i];
  workers[0].progress.emplace().set_step(7);
  workers[2].progress.emplace().set_step(5);
  workers[2].progress->set_loss(0.5);
  workers[2].progress->set_total(90);
  workers[2].progress->add_figures()->set_name("lr");
  const v1::NodeProgress sum = SumOfProgress(workers);
  EXPECT_EQ(sum.workers(), 2u);
  EXPECT_EQ(sum.min_step(), 5u);
  EXPECT_EQ(sum.max_step(), 7u);
  EXPECT_EQ(sum.slowest_local_rank(), 2u);
  EXPECT_EQ(sum.loss(), 0.5);
  EXPECT_EQ(sum.total(), 90u);
  ASSERT_EQ(sum.figures_size(), 1);
  EXPECT_EQ(sum.figures(0).name(), "lr");
}

TEST(ClassifyExit, Table) {
  struct Case {
    int code;
    int signal;
    int exec_errno;
    bool out_of_memory;
    v1::FailureCause expected;
  };
  for (const Case& c : {
           Case{0, 0, 0, false, v1::FAILURE_CAUSE_UNSPECIFIED},
           Case{0, 0, 0, true, v1::FAILURE_CAUSE_UNSPECIFIED},
           Case{1, 0, 0, false, v1::CRASH},
           Case{0, 9, 0, false, v1::CRASH},
           Case{0, 9, 0, true, v1::OUT_OF_MEMORY},
           Case{0, 15, 0, false, v1::PREEMPTED},
           Case{1, 0, 0, true, v1::OUT_OF_MEMORY},
           Case{127, 0, ENOENT, false, v1::EXEC_FAILED},
           Case{0, 0, EACCES, false, v1::EXEC_FAILED},
           Case{0, 0, EAGAIN, false, v1::CRASH},
           Case{0, 0, EMFILE, false, v1::CRASH},
           Case{0, 0, ENFILE, false, v1::CRASH},
           Case{0, 0, ENOMEM, false, v1::CRASH},
       }) {
    v1::WorkerExit exit;
    exit.set_exit_code(c.code);
    exit.set_signal(c.signal);
    exit.set_exec_errno(c.exec_errno);
    exit.set_out_of_memory(c.out_of_memory);
    EXPECT_EQ(ClassifyExit(exit, false), c.expected) << exit.ShortDebugString();
  }
}

TEST(ClassifyExit, ByWhatTheProgramSaid) {
  v1::WorkerExit exit;
  exit.set_exit_code(1);
  const std::string frame = "  File \"train.py\", line 5\n";
  exit.set_last_lines(frame + "SyntaxError: invalid syntax\n");
  EXPECT_EQ(ClassifyExit(exit, false), v1::LOAD_FAILED);
  exit.set_last_lines(frame + "MemoryError\n");
  EXPECT_EQ(ClassifyExit(exit, false), v1::OUT_OF_MEMORY);
  exit.set_last_lines(frame + "ValueError\n");
  EXPECT_EQ(ClassifyExit(exit, false), v1::CRASH);
}

TEST(ClassifyExit, SigtermThatCadreSent_IsNoPreemption) {
  v1::WorkerExit exit;
  exit.set_signal(15);
  EXPECT_EQ(ClassifyExit(exit, true), v1::CRASH);
}

TEST(ExitStatusOfRejection, Table) {
  EXPECT_EQ(ExitStatusOfRejection(absl::StatusCode::kInvalidArgument), 64);
  EXPECT_EQ(ExitStatusOfRejection(absl::StatusCode::kFailedPrecondition), 75);
  EXPECT_EQ(ExitStatusOfRejection(absl::StatusCode::kAlreadyExists), 75);
  EXPECT_EQ(ExitStatusOfRejection(absl::StatusCode::kUnauthenticated), 69);
  EXPECT_EQ(ExitStatusOfRejection(absl::StatusCode::kInternal), 70);
}

TEST(FailureOf, SaysHowTheWorkerEnded) {
  v1::WorkerExited exited;
  exited.set_local_rank(1);
  exited.set_cause(v1::CRASH);
  exited.mutable_exit()->set_signal(9);
  exited.mutable_exit()->set_last_lines("last");
  exited.mutable_evidence()->set_summary("gone");
  const v1::Failure failure = FailureOf(exited, 4, "n1", 3);
  EXPECT_EQ(failure.message(),
            "rank 5 (local rank 1) on n1 was killed by signal 9 (SIGKILL) in generation 3");
  EXPECT_EQ(failure.cause(), v1::CRASH);
  EXPECT_EQ(failure.node(), "n1");
  EXPECT_EQ(failure.exit().last_lines(), "last");
  ASSERT_EQ(failure.evidence_size(), 1);
  EXPECT_EQ(failure.evidence(0).rank(), 5);

  exited.mutable_exit()->set_exec_errno(ENOENT);
  EXPECT_EQ(FailureOf(exited, 4, "n1", 3).message(),
            "rank 5 (local rank 1) on n1 could not be started: No such file or directory in "
            "generation 3");
}

}  // namespace
}  // namespace cadre::agent
