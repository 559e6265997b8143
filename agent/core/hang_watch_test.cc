#include "agent/core/hang_watch.h"

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

constexpr MonoTime At(int64_t seconds) { return MonoTime::FromMicros(seconds * 1000000); }

v1::JobSpec Limits(int64_t progress, int64_t silence) {
  v1::JobSpec spec;
  if (progress > 0) spec.mutable_timeouts()->mutable_progress()->set_seconds(progress);
  if (silence > 0) spec.mutable_timeouts()->mutable_silence()->set_seconds(silence);
  return spec;
}

Worker Running(int64_t wrote) {
  Worker worker;
  worker.state = WorkerState::kRunning;
  worker.pid = 100;
  worker.wrote_at = At(wrote);
  return worker;
}

TEST(HangsAt, Table) {
  Worker worker = Running(10);
  EXPECT_EQ(HangsAt(worker, Limits(60, 0).timeouts()), MonoTime::Never()) << "shows no progress";
  EXPECT_EQ(HangsAt(worker, Limits(60, 30).timeouts()), At(40));
  worker.imports = true;
  EXPECT_EQ(HangsAt(worker, Limits(0, 30).timeouts()), At(610))
      << "says nothing until it has begun";
  EXPECT_EQ(HangsAt(worker, Limits(0, 900).timeouts()), At(910));
  worker.imports = false;
  worker.progressed_at = At(20);
  EXPECT_EQ(HangsAt(worker, Limits(60, 30).timeouts()), At(80)) << "need not write";
  EXPECT_EQ(HangsAt(worker, Limits(0, 30).timeouts()), At(50));
  EXPECT_EQ(HangsAt(worker, Limits(0, 0).timeouts()), MonoTime::Never());
  for (const WorkerEvent event : {WorkerEvent::kWaits, WorkerEvent::kExits}) {
    Worker other = worker;
    other.Apply(event);
    EXPECT_EQ(HangsAt(other, Limits(60, 30).timeouts()), MonoTime::Never());
  }
}

TEST(EvidenceOf, WhoIsOverdueComesFirst) {
  const v1::JobSpec spec = Limits(0, 30);
  const Workers workers = {{0, Running(90)}, {1, Running(10)}};
  EXPECT_EQ(FirstHang(workers, spec.timeouts()), At(40));
  EXPECT_THAT(Overdue(workers, spec.timeouts(), At(100)), ElementsAre(1));
  const v1::NodeEvidence evidence = EvidenceOf({}, workers, spec, At(100));
  EXPECT_TRUE(evidence.hang());
  ASSERT_EQ(evidence.ranks_size(), 2);
  EXPECT_EQ(evidence.ranks(0).local_rank(), 1);
  EXPECT_EQ(evidence.ranks(0).summary(), "no output for 90.0 s");
  EXPECT_FALSE(EvidenceOf({}, workers, spec, At(39)).hang());
}

TEST(HangWatch, FindingsThatComeAfterAStandstill_WaitUntilReportsWereRead) {
  HangWatch watch;
  EXPECT_TRUE(watch.idle());
  watch.Begin(At(1), /*briefly=*/false);
  EXPECT_FALSE(watch.idle());
  EXPECT_FALSE(watch.OnFindings({v1::RankEvidence()}, At(5)));
  EXPECT_FALSE(watch.FindingsAreDue(At(5)));
  EXPECT_EQ(watch.Deadline(), At(5) + kReadTime);
  EXPECT_TRUE(watch.FindingsAreDue(At(5) + kReadTime));
  EXPECT_EQ(watch.TakeFindings().size(), 1u);
  EXPECT_FALSE(watch.OnFindings({}, At(6))) << "told already";
  EXPECT_TRUE(watch.probing());
  EXPECT_TRUE(watch.End());
  EXPECT_FALSE(watch.End());
}

TEST(HangWatch, AHangIsNews_AndWhatWasAskedFor) {
  HangWatch watch;
  v1::NodeEvidence evidence;
  EXPECT_FALSE(watch.ShouldReport(/*stands_still=*/false, &evidence));
  watch.Inspect();
  EXPECT_TRUE(watch.ShouldReport(/*stands_still=*/false, &evidence));
  EXPECT_FALSE(watch.ShouldReport(/*stands_still=*/false, &evidence));
  evidence.set_hang(true);
  EXPECT_TRUE(watch.ShouldReport(/*stands_still=*/false, &evidence));
  EXPECT_TRUE(watch.hang().has_value());
}

TEST(HangWatch, AStandstillIsNewsAsLongAsItLasts_AndHoldsNoStop) {
  HangWatch watch;
  v1::NodeEvidence evidence;
  EXPECT_EQ(watch.NextProbe(At(7)), At(7));
  watch.OnStandstillProbe(At(7), At(8));
  watch.Begin(At(8), /*briefly=*/true);
  EXPECT_TRUE(watch.probing());
  EXPECT_FALSE(watch.delays_stop());
  EXPECT_TRUE(watch.ShouldReport(/*stands_still=*/true, &evidence));
  EXPECT_TRUE(evidence.stall());
  EXPECT_EQ(watch.NextProbe(At(7)), At(8) + kProbeAgain);
  EXPECT_EQ(watch.NextProbe(At(9)), At(9));
  watch.OnStandstillProbe(At(9), At(9));
  EXPECT_FALSE(watch.ShouldReport(/*stands_still=*/false, &evidence));
  EXPECT_FALSE(evidence.stall());
}

// What the agent does about workers that make no progress.

class HangsTest : public AgentCoreTest {};

TEST_F(HangsTest, WorkerWithoutProgress_IsLookedAtAndReportedOnce) {
  Run();
  LimitProgress();
  Progress(0, 1);
  now_ = now_ + absl::Seconds(40);
  Progress(0, 2);
  now_ = now_ + absl::Seconds(40);
  EXPECT_THAT(Progress(0, 2), ElementsAre("up progress of 1 step=2..2 slowest=0"));
  EXPECT_EQ(core_->NextDeadline(), now_ + absl::Seconds(20));
  EXPECT_THAT(Deadline(absl::Seconds(20)), ElementsAre("look 1 overdue=0"));
  now_ = now_ + absl::Milliseconds(200);
  EXPECT_THAT(Found({0, 1}), ElementsAre("up evidence of a hang 0! 1"));
  now_ = now_ + absl::Milliseconds(200);
  // Stacks are being written, so the workers are not stopped yet.
  EXPECT_THAT(Stop(1), IsEmpty());
  EXPECT_THAT(Feed(EvidenceDone{1}), ElementsAre("stop 1 grace=5s"));
  EXPECT_THAT(Died(1, 0, 0, SIGKILL), ElementsAre("up exited 1/0 CRASH"));
  now_ = now_ + absl::Seconds(1000);
  EXPECT_THAT(Feed(AgentTick{}), IsEmpty());
}

TEST_F(HangsTest, WorkerThatGetsOnWhileItIsLookedAt_DoesNotHang) {
  Run();
  LimitProgress();
  Progress(0, 1);
  EXPECT_THAT(Deadline(absl::Seconds(60)), ElementsAre("look 1 overdue=0"));
  Feed(WorkerAlive{1, 0, now_});
  EXPECT_THAT(Found({0, 1}), IsEmpty());
  EXPECT_THAT(Feed(EvidenceDone{1}), IsEmpty());
  EXPECT_THAT(Deadline(absl::Seconds(60)), ElementsAre("look 1 overdue=0"));
}

// Fault (worker): A worker that hangs cannot be examined -> The hang is reported without evidence
// after 0.9 s, and the worker is stopped after at most 6 s
TEST_F(HangsTest, ALookThatTakesTooLong_TheHangIsReportedWithoutIt) {
  Run();
  LimitProgress();
  Progress(0, 1);
  EXPECT_THAT(Deadline(absl::Seconds(60)), ElementsAre("look 1 overdue=0"));
  EXPECT_THAT(Deadline(kEvidenceLimit), ElementsAre("up evidence of a hang 0! 1"));
  EXPECT_THAT(Found({0, 1}), IsEmpty());
  EXPECT_THAT(Stop(1), IsEmpty());
  EXPECT_THAT(Deadline(kStacksLimit - kEvidenceLimit), ElementsAre("stop 1 grace=5s"));
}

TEST_F(HangsTest, StopWithoutGrace_DoesNotWaitForTheLook) {
  Run();
  LimitProgress();
  Progress(0, 1);
  EXPECT_THAT(Deadline(absl::Seconds(60)), ElementsAre("look 1 overdue=0"));
  EXPECT_THAT(Stop(1), IsEmpty());
  Feed(SignalReceived{SIGINT});
  EXPECT_THAT(Feed(SignalReceived{SIGINT}), Contains("stop 1 grace=0"));
}

TEST_F(HangsTest, Inspect_IsAnsweredAlsoWhenNothingHangsHere) {
  Run();
  LimitProgress();
  EXPECT_THAT(Inspect(2), IsEmpty());
  EXPECT_THAT(Inspect(1), ElementsAre("look 1 overdue="));
  EXPECT_THAT(Inspect(1), IsEmpty());
  EXPECT_THAT(Found({0, 1}), ElementsAre("up evidence 0 1"));
}

TEST_F(HangsTest, WhoeverAsksWhereTheWorkersAre_IsAnswered) {
  Run();
  EXPECT_THAT(AskStacks(1, 7), ElementsAre("stacks 1 for 7"));
  EXPECT_THAT(AskStacks(2, 8),
              ElementsAre("up stacks 8 of 0: no worker of generation 2 runs there now"));
  v1::NodeStacks stacks;
  stacks.set_call(7);
  stacks.add_ranks();
  EXPECT_THAT(Feed(StacksFound{1, stacks}), ElementsAre("up stacks 7 of 1"));
  // A probe because of a hang is independent of it, and runs in parallel.
  EXPECT_THAT(Inspect(1), ElementsAre("look 1 overdue="));
  EXPECT_THAT(AskStacks(1, 9), ElementsAre("stacks 1 for 9"));
  Feed(LinkDown{absl::UnavailableError("gone")});
  EXPECT_THAT(Feed(StacksFound{1, stacks}), IsEmpty());
}

TEST_F(HangsTest, AStandstillWithoutAnyTimeout_IsLookedAtBrieflyAndTold_AndAgainAfterAWhile) {
  Run();
  LimitProgress(0, 0);
  Progress(0, 1);
  now_ = now_ + absl::Seconds(2);
  Progress(0, 2);
  EXPECT_THAT(Deadline(absl::Seconds(6)), ElementsAre("look 1 briefly overdue="));
  now_ = now_ + absl::Milliseconds(200);
  EXPECT_THAT(Found({0, 1}), ElementsAre("up evidence of a standstill 0 1"));
  Feed(EvidenceDone{1});
  EXPECT_THAT(Deadline(kProbeAgain - absl::Milliseconds(200)),
              ElementsAre("look 1 briefly overdue="));
  // A stop does not wait for a brief probe.
  EXPECT_THAT(Stop(1), ElementsAre("stop 1 grace=5s"));
}

TEST_F(HangsTest, AStepWhileItIsLookedAt_IsNoStandstill) {
  Run();
  LimitProgress(0, 0);
  Progress(0, 1);
  now_ = now_ + absl::Milliseconds(1500);
  Progress(0, 2);
  // This is the minimum, however short the steps are.
  EXPECT_THAT(Deadline(kMinStandstill), ElementsAre("look 1 briefly overdue="));
  Progress(0, 3);
  EXPECT_THAT(Found({0, 1}), IsEmpty());
  Feed(EvidenceDone{1});
  // The next one is another standstill, for which kProbeAgain does not apply.
  now_ = now_ + absl::Seconds(2);
  Progress(0, 4);
  EXPECT_LT(core_->NextDeadline(), now_ + kProbeAgain / 2);
}

TEST_F(HangsTest, AStandstillThatBecomesAHang_IsLookedAtWhole) {
  Run();
  LimitProgress();
  Progress(0, 1);
  now_ = now_ + absl::Seconds(1);
  Progress(0, 2);
  EXPECT_THAT(Deadline(absl::Seconds(5)), ElementsAre("look 1 briefly overdue="));
  Found({0, 1});
  Feed(EvidenceDone{1});
  EXPECT_THAT(Deadline(kProbeAgain), ElementsAre("look 1 briefly overdue="));
  Found({0, 1});
  Feed(EvidenceDone{1});
  EXPECT_THAT(Deadline(absl::Seconds(25)), ElementsAre("look 1 overdue=0"));
}

TEST_F(HangsTest, WhoAsksBriefly_IsAnsweredBriefly) {
  Run();
  LimitProgress(0, 0);
  EXPECT_THAT(Inspect(1, /*briefly=*/true), ElementsAre("look 1 briefly overdue="));
  EXPECT_THAT(Found({0, 1}), ElementsAre("up evidence 0 1"));
}

TEST_F(HangsTest, SilentWorker_HangsByItsOutputAlone) {
  Run();
  LimitProgress(30);
  now_ = now_ + absl::Seconds(20);
  Feed(WorkerWrote{1, 0, now_});
  EXPECT_THAT(Deadline(absl::Seconds(10)), ElementsAre("look 1 overdue=1"));
  EXPECT_THAT(Found({0, 1}), ElementsAre("up evidence of a hang 1! 0"));
}

// A program that imports its packages is silent meanwhile, but the time for that is limited.
//
// Fault (python): A Python program imports for longer than `timeouts.silence` -> This is not a
// hang: silence is counted only after the program has imported its packages
TEST_F(HangsTest, SilenceIsCountedOnceAPythonProgramHasImportedItsPackages) {
  Feed(LinkUp{});
  Welcome();
  Assign(1);
  for (uint32_t i = 0; i < 2; ++i) {
    Feed(WorkerRuns{1, i, static_cast<int32_t>(100 + i), false, "its first start"});
  }
  LimitProgress(/*silence_seconds=*/30, /*progress_seconds=*/0);
  EXPECT_THAT(After(absl::Seconds(54)), ::testing::Not(Contains(HasSubstr("look"))));
  ProgramImported imported{1, {}};
  imported.imports.set_worker_us(54000000);
  Feed(imported);
  EXPECT_THAT(After(absl::Seconds(29)), ::testing::Not(Contains(HasSubstr("look"))));
  EXPECT_THAT(After(absl::Seconds(1)), Contains("look 1 overdue=0,1"));
}

TEST_F(HangsTest, ASilentWorkerThatShowsProgress_HangsByItsProgressAlone) {
  Run();
  LimitProgress(30);
  Progress(0, 1);
  Feed(WorkerAlive{1, 1, now_});
  EXPECT_EQ(core_->NextDeadline(), now_ + absl::Seconds(60));
}

TEST_F(HangsTest, WithALimitForSilenceAlone_ProgressIsNoSilence) {
  Run();
  LimitProgress(/*silence_seconds=*/30, /*progress_seconds=*/0);
  now_ = now_ + absl::Seconds(20);
  Progress(0, 1);
  Feed(WorkerAlive{1, 1, now_});
  EXPECT_THAT(After(absl::Seconds(29)), ::testing::Not(Contains(HasSubstr("look"))));
  EXPECT_THAT(After(absl::Seconds(1)), Contains("look 1 overdue=0,1"));
}

// The server blames the worker that was silent for longest.
TEST_F(HangsTest, WithALimitForSilenceAlone_SilenceIsCountedFromTheLastSignOfLife) {
  Run();
  LimitProgress(/*silence_seconds=*/30, /*progress_seconds=*/0);
  Progress(0, 1);
  Feed(WorkerAlive{1, 1, now_ + absl::Seconds(1)});
  now_ = now_ + absl::Seconds(50);
  Feed(WorkerWrote{1, 0, now_});
  now_ = now_ + absl::Seconds(30);
  EvidenceFound found{1, {}};
  found.ranks.emplace_back().set_local_rank(0);
  found.ranks.emplace_back().set_local_rank(1);
  Feed(AgentTick{});
  const std::vector<AgentCommand> commands = core_->Step(now_, found);
  ASSERT_EQ(commands.size(), 1u);
  const v1::NodeEvidence& evidence = std::get<SendToServer>(commands[0]).message.evidence();
  ASSERT_EQ(evidence.ranks_size(), 2);
  EXPECT_EQ(evidence.ranks(0).summary(), "no output for 30.0 s");
  EXPECT_EQ(evidence.ranks(0).silent_seconds(), 30);
  EXPECT_EQ(evidence.ranks(1).summary(), "no progress for 79.0 s");
}

TEST_F(HangsTest, AHangIsToldAgainToAServerThatComesBack) {
  Run();
  LimitProgress();
  Progress(0, 1);
  EXPECT_THAT(Deadline(absl::Seconds(60)), ElementsAre("look 1 overdue=0"));
  EXPECT_THAT(Found({0, 1}), ElementsAre("up evidence of a hang 0! 1"));
  Feed(LinkDown{absl::UnavailableError("gone")});
  Feed(LinkUp{});
  EXPECT_THAT(Welcome(), Contains("up evidence of a hang 0! 1"));
}

// Fault (node): An agent stands still, and progress reports wait to be read -> No worker is taken
// for hanging because of them
TEST_F(HangsTest, ProgressUnreadWhileTheAgentStoodStill_IsNoHang) {
  Run();
  LimitProgress();
  Progress(0, 1);
  now_ = now_ + absl::Seconds(90);
  EXPECT_THAT(Feed(AgentTick{}), ElementsAre("look 1 overdue=0"));
  EXPECT_THAT(Progress(0, 2), ElementsAre("up progress of 1 step=2..2 slowest=0"));
  EXPECT_THAT(Found({0, 1}), IsEmpty());
  EXPECT_THAT(Feed(EvidenceDone{1}), IsEmpty());
  now_ = now_ + absl::Seconds(60);
  EXPECT_THAT(Feed(AgentTick{}), ElementsAre("look 1 overdue=0"));
  // The agent is suspended again during the probe: reports sent meanwhile may be read after the
  // findings.
  now_ = now_ + absl::Seconds(5);
  EXPECT_THAT(Found({0, 1}), IsEmpty());
  EXPECT_THAT(Deadline(kReadTime), ElementsAre("up evidence of a hang 0! 1"));
}

}  // namespace
}  // namespace cadre::agent
