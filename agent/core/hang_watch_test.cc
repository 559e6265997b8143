#include "agent/core/hang_watch.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;

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
    other.Take(event);
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
  EXPECT_FALSE(watch.Found({v1::RankEvidence()}, At(5)));
  EXPECT_FALSE(watch.FindingsAreDue(At(5)));
  EXPECT_EQ(watch.Deadline(), At(5) + kReadTime);
  EXPECT_TRUE(watch.FindingsAreDue(At(5) + kReadTime));
  EXPECT_EQ(watch.TakeFindings().size(), 1u);
  EXPECT_FALSE(watch.Found({}, At(6))) << "told already";
  EXPECT_TRUE(watch.looking());
  EXPECT_TRUE(watch.End());
  EXPECT_FALSE(watch.End());
}

TEST(HangWatch, AHangIsNews_AndWhatWasAskedFor) {
  HangWatch watch;
  v1::NodeEvidence evidence;
  EXPECT_FALSE(watch.IsNews(/*stands_still=*/false, &evidence));
  watch.Inspect();
  EXPECT_TRUE(watch.IsNews(/*stands_still=*/false, &evidence));
  EXPECT_FALSE(watch.IsNews(/*stands_still=*/false, &evidence));
  evidence.set_hang(true);
  EXPECT_TRUE(watch.IsNews(/*stands_still=*/false, &evidence));
  EXPECT_TRUE(watch.hang().has_value());
}

TEST(HangWatch, AStandstillIsNewsAsLongAsItLasts_AndHoldsNoStop) {
  HangWatch watch;
  v1::NodeEvidence evidence;
  EXPECT_EQ(watch.LooksAt(At(7)), At(7));
  watch.Looks(At(7), At(8));
  watch.Begin(At(8), /*briefly=*/true);
  EXPECT_TRUE(watch.looking());
  EXPECT_FALSE(watch.holds_stop());
  EXPECT_TRUE(watch.IsNews(/*stands_still=*/true, &evidence));
  EXPECT_TRUE(evidence.stall());
  EXPECT_EQ(watch.LooksAt(At(7)), At(8) + kLookAgain);
  EXPECT_EQ(watch.LooksAt(At(9)), At(9));
  watch.Looks(At(9), At(9));
  EXPECT_FALSE(watch.IsNews(/*stands_still=*/false, &evidence));
  EXPECT_FALSE(evidence.stall());
}

}  // namespace
}  // namespace cadre::agent
