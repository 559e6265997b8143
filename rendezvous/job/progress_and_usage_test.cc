#include "rendezvous/job/progress_and_usage.h"

#include <limits>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::job {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsNan;
using ::testing::NanSensitiveFloatEq;
using ::testing::SizeIs;

// Two nodes of two workers each; created at 10 s.
state::Job TwoNodes(uint64_t generation) {
  state::Job job;
  job.saved.mutable_times()->set_created_us(10000000);
  saved::Generation formed;
  formed.set_number(generation);
  for (const char* node : {"a", "b"}) {
    saved::Member* member = formed.add_members();
    member->set_first_rank(2 * (formed.members_size() - 1));
    member->set_node(node);
    member->set_slots(2);
  }
  job.generation = state::Generation(std::move(formed));
  return job;
}

v1::NodeProgress At(uint64_t step, double speed = 10, double loss = 1) {
  v1::NodeProgress progress;
  progress.set_workers(2);
  progress.set_min_step(step);
  progress.set_max_step(step + 1);
  progress.set_slowest_local_rank(1);
  progress.set_samples_per_second(speed);
  progress.set_loss(loss);
  return progress;
}

MonoTime Second(double second) { return MonoTime::FromMicros(static_cast<int64_t>(second * 1e6)); }

TEST(ProgressLog, Current_IsTheSlowestStepTheWholeSpeedAndTheMeanLoss) {
  ProgressLog log;
  const state::Job job = TwoNodes(1);
  EXPECT_FALSE(log.Current(job, Second(11)).has_value());
  log.Note(job, "a", At(7, 10, 1), Second(11));
  log.Note(job, "b", At(5, 30, 3), Second(11));
  const auto current = log.Current(job, Second(11));
  ASSERT_TRUE(current.has_value());
  EXPECT_EQ(current->step(), 5u);
  EXPECT_EQ(current->max_step(), 8u);
  EXPECT_EQ(current->slowest_rank(), 3u);
  EXPECT_EQ(current->samples_per_second(), 40);
  EXPECT_EQ(current->loss(), 2);
  EXPECT_EQ(current->workers(), 4u);
  EXPECT_FALSE(log.Current(TwoNodes(2), Second(11)).has_value());
}

TEST(ProgressLog, Current_TellsSinceWhenTheSlowestStepIsTheSame) {
  ProgressLog log;
  const state::Job job = TwoNodes(1);
  const auto quiet = [&](double second) { return log.Current(job, Second(second))->quiet_us(); };
  EXPECT_TRUE(log.Note(job, "a", At(5), Second(11)));
  EXPECT_EQ(quiet(12), 1000000);
  EXPECT_EQ(log.Current(job, Second(12))->usual_us(), 0);
  EXPECT_TRUE(log.Note(job, "a", At(6), Second(13)));
  EXPECT_EQ(log.Current(job, Second(13))->usual_us(), 2000000);
  // Another rate with the same step, or steps of faster workers, do not show that the job makes
  // progress.
  EXPECT_FALSE(log.Note(job, "a", At(6, 20), Second(14)));
  EXPECT_FALSE(log.Note(job, "b", At(9), Second(15)));
  EXPECT_EQ(quiet(15), 2000000);
  EXPECT_TRUE(log.Note(job, "a", At(7), Second(19)));
  EXPECT_EQ(log.Current(job, Second(19))->usual_us(), 3000000);
  EXPECT_EQ(quiet(19), 0);
}

// Adds a figure that a worker of the node reports under a name of its own.
v1::NodeProgress With(v1::NodeProgress progress, const std::string& name, double value) {
  v1::Figure* figure = progress.add_figures();
  figure->set_name(name);
  figure->set_value(value);
  return progress;
}

TEST(ProgressLog, Current_HasTheFiguresOfTheFirstRankThatReportsAny) {
  ProgressLog log;
  const state::Job job = TwoNodes(1);
  log.Note(job, "b", With(At(5), "lr", 0.5), Second(11));
  ASSERT_THAT(log.Current(job, Second(11))->figures(), SizeIs(1));
  EXPECT_EQ(log.Current(job, Second(11))->figures(0).value(), 0.5);
  log.Note(job, "a", With(At(5), "lr", 0.25), Second(11));
  log.Note(job, "b", With(At(6), "lr", 0.75), Second(12));
  ASSERT_THAT(log.Current(job, Second(12))->figures(), SizeIs(1));
  EXPECT_EQ(log.Current(job, Second(12))->figures(0).value(), 0.25);
}

TEST(ProgressLog, Current_TellsHowLongTheStepsThatAreLeftTake) {
  ProgressLog log;
  const state::Job job = TwoNodes(1);
  v1::NodeProgress first = At(100);
  first.set_total(1000);
  log.Note(job, "a", first, Second(11));
  EXPECT_EQ(log.Current(job, Second(11))->total(), 1000u);
  EXPECT_EQ(log.Current(job, Second(11))->left_us(), 0);
  v1::NodeProgress later = At(400);
  later.set_total(1000);
  log.Note(job, "a", later, Second(41));
  EXPECT_EQ(log.Current(job, Second(41))->left_us(), 60000000);
  // The steps exceed the total, or the total is impossible.
  later.set_total(300);
  log.Note(job, "a", later, Second(42));
  EXPECT_EQ(log.Current(job, Second(42))->left_us(), 0);
  later.set_total(std::numeric_limits<uint64_t>::max());
  log.Note(job, "a", later, Second(43));
  EXPECT_EQ(log.Current(job, Second(43))->left_us(), 0);
}

TEST(ProgressLog, Samples_HaveTheFiguresByTheirPlaceAmongTheNames) {
  ProgressLog log;
  const state::Job job = TwoNodes(1);
  log.Note(job, "a", With(At(1), "lr", 0.5), Second(11));
  log.Note(job, "a", With(With(At(2), "acc", 0.9), "<b>", 1), Second(12));
  const v1::Timeline timeline = MakeTimeline("j", job, log);
  EXPECT_THAT(timeline.figure_names(), ElementsAre("lr", "acc"));
  EXPECT_THAT(timeline.progress(0).figures(), ElementsAre(0.5));
  EXPECT_THAT(timeline.progress(1).figures(), ElementsAre(IsNan(), 0.9));
}

// Fault (display): A program makes up new metric names all the time -> The samples that the server
// keeps stay bounded
TEST(ProgressLog, Samples_OfAProgramThatMakesUpNames_AreBounded) {
  ProgressLog log;
  const state::Job job = TwoNodes(1);
  for (int i = 0; i < 1000; ++i) {
    log.Note(job, "a", With(At(i), "m" + std::to_string(i), i), Second(11 + i));
  }
  EXPECT_THAT(log.figure_names(), SizeIs(rpc::kMaxFigures));
  for (const v1::ProgressSample& sample : log.samples()) {
    ASSERT_LE(sample.figures_size(), rpc::kMaxFigures);
  }
}

TEST(ProgressLog, StepOf_IsNoneWhereStepsAreCountedAnew) {
  ProgressLog log;
  const state::Job job = TwoNodes(1);
  EXPECT_FALSE(log.StepOf(job).has_value());
  log.Note(job, "a", At(900), Second(11));
  log.Note(job, "b", At(899), Second(11));
  EXPECT_EQ(log.StepOf(job), 899u);
  // Another epoch begins.
  log.Note(job, "a", At(3), Second(12));
  EXPECT_FALSE(log.StepOf(job).has_value());
  log.Note(TwoNodes(2), "a", At(3), Second(13));
  EXPECT_EQ(log.StepOf(TwoNodes(2)), 3u);
  v1::NodeProgress progress = At(4);
  progress.set_of_generation(true);
  log.Note(TwoNodes(2), "a", progress, Second(14));
  EXPECT_FALSE(log.StepOf(TwoNodes(2)).has_value());
}

TEST(ProgressLog, Samples_OnePerSecondAndTheLastOfAGeneration) {
  ProgressLog log;
  const state::Job job = TwoNodes(1);
  log.Note(job, "a", At(1), Second(11));
  log.Note(job, "a", At(2), Second(11.5));
  log.Note(job, "a", At(3), Second(12));
  log.Note(job, "a", At(4), Second(12.7));
  ASSERT_THAT(log.samples(), SizeIs(2));
  EXPECT_EQ(log.samples()[1].step(), 3u);
  log.EndGeneration(job);
  log.EndGeneration(job);
  ASSERT_THAT(log.samples(), SizeIs(3));
  EXPECT_EQ(log.samples()[2].step(), 4u);
  EXPECT_EQ(log.samples()[2].at_us(), 2700000);
  log.Note(TwoNodes(2), "a", At(4), Second(13));
  ASSERT_THAT(log.samples(), SizeIs(4));
  EXPECT_EQ(log.FirstProgressUs(1), 1000000);
  EXPECT_EQ(log.FirstProgressUs(2), 3000000);
  EXPECT_EQ(log.FirstProgressUs(3), 0);
}

TEST(ProgressLog, Samples_OfALongJobAreFurtherApartAndReachItsEnd) {
  ProgressLog log;
  const state::Job job = TwoNodes(1);
  for (int second = 0; second <= 100000; ++second) {
    log.Note(job, "a", At(second), Second(11 + second));
    ASSERT_LE(log.samples().size(), kMaxProgressSamples);
  }
  EXPECT_GT(log.samples().size(), kMaxProgressSamples / 4);
  EXPECT_EQ(log.samples().front().step(), 0u);
  EXPECT_GT(log.samples().back().step(), 99000u);
}

TEST(MakeTimeline, Recovery_FromTheFailureToTheNextGenerationsProgress) {
  state::Job job = TwoNodes(2);
  v1::GenerationTimeline* first = job.saved.mutable_timeline()->add_generations();
  first->set_generation(1);
  first->set_failed_us(5000);
  first->set_stopped_us(7000);
  first->set_end_reason("rank 1 died");
  v1::GenerationTimeline* second = job.saved.mutable_timeline()->add_generations();
  second->set_generation(2);
  second->set_formed_us(7100);
  second->set_running_us(9100);
  ProgressLog log;
  log.Note(job, "a", At(3), MonoTime::FromMicros(job.saved.times().created_us() + 9600));
  const v1::Timeline timeline = MakeTimeline("j", job, log);
  ASSERT_THAT(timeline.recoveries(), SizeIs(1));
  const v1::Recovery& recovery = timeline.recoveries(0);
  EXPECT_EQ(recovery.to_generation(), 2u);
  EXPECT_EQ(recovery.reason(), "rank 1 died");
  EXPECT_EQ(recovery.stop_us(), 2000);
  EXPECT_EQ(recovery.gather_us(), 100);
  EXPECT_EQ(recovery.start_us(), 2000);
  EXPECT_EQ(recovery.first_progress_us(), 500);
  EXPECT_EQ(recovery.total_us(), 4100);
  EXPECT_THAT(timeline.progress(), SizeIs(1));

  // A server that was restarted while the generation ran does not take the first report that it
  // gets for the generation's first.
  ProgressLog later;
  later.BeginAt(MonoTime::FromMicros(job.saved.times().created_us() + 9200));
  later.Note(job, "a", At(3), MonoTime::FromMicros(job.saved.times().created_us() + 9600));
  EXPECT_EQ(MakeTimeline("j", job, later).recoveries(0).first_progress_us(), 0);
}

constexpr int64_t kSecond = 1000000;

v1::NodeUsage Busy(float cpu, uint32_t gpus = 0, float gpu = 0) {
  v1::NodeUsage usage;
  usage.set_cpu(cpu);
  usage.set_memory_used(3 << 20);
  usage.set_memory_total(4 << 20);
  usage.set_gpus(gpus);
  usage.set_gpu(gpu);
  return usage;
}

TEST(UsageLogTest, OneSampleInTenSeconds_AndNoCurveWhereNoGpuIs) {
  UsageLog log;
  for (int second = 0; second <= 30; second += 3) log.Note("a", Busy(0.5), second * kSecond);
  const v1::JobUsage all = log.All();
  ASSERT_EQ(all.nodes_size(), 1);
  EXPECT_EQ(all.nodes(0).node(), "a");
  EXPECT_THAT(all.nodes(0).at_us(), ElementsAre(0, 12 * kSecond, 24 * kSecond));
  EXPECT_THAT(all.nodes(0).memory(), ElementsAre(0.75f, 0.75f, 0.75f));
  EXPECT_THAT(all.nodes(0).gpu(), IsEmpty());
}

TEST(UsageLogTest, AGpuThatWasNotToldOfAtTimes) {
  UsageLog log;
  log.Note("a", Busy(0), 0);
  log.Note("a", Busy(0, 1, 0.25f), 10 * kSecond);
  log.Note("a", Busy(0), 20 * kSecond);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(log.All().nodes(0).gpu(),
              ElementsAre(NanSensitiveFloatEq(nan), 0.25f, NanSensitiveFloatEq(nan)));
}

// Fault (display): A node reports an impossible load -> It is not shown; a share stays between 0
// and 1
TEST(UsageLogTest, NumbersThatCannotBe_AreNotShown) {
  UsageLog log;
  log.Note("a", Busy(std::numeric_limits<float>::quiet_NaN()), 0);
  v1::NodeUsage usage = Busy(7);
  usage.set_memory_used(std::numeric_limits<uint64_t>::max());
  log.Note("a", usage, 10 * kSecond);
  usage.set_memory_total(0);
  log.Note("a", usage, 20 * kSecond);
  EXPECT_THAT(log.All().nodes(0).cpu(), ElementsAre(0, 1, 1));
  EXPECT_THAT(log.All().nodes(0).memory(), ElementsAre(0.75f, 1, 0));
}

TEST(UsageLogTest, ALongJobAndALargeOne_KeepABoundedNumberThatReachesTheEnd) {
  UsageLog longer;
  for (int64_t i = 0; i < 100000; ++i) longer.Note("a", Busy(0.5, 1, 0.5), 10 * i * kSecond);
  const v1::NodeUsageHistory history = longer.All().nodes(0);
  EXPECT_LE(history.at_us_size(), kMaxUsageSamples);
  EXPECT_GT(history.at_us_size(), kMaxUsageSamples / 3);
  EXPECT_EQ(history.gpu_size(), history.at_us_size());
  EXPECT_EQ(history.cpu_size(), history.at_us_size());
  EXPECT_GT(history.at_us(history.at_us_size() - 1), 990000 * kSecond);

  UsageLog larger;
  for (int64_t i = 0; i < 100; ++i) {
    for (int node = 0; node < 2000; ++node) {
      larger.Note("n" + std::to_string(node), Busy(0.5), 10 * i * kSecond);
    }
  }
  size_t samples = 0;
  const v1::JobUsage all = larger.All();
  for (const v1::NodeUsageHistory& one : all.nodes()) {
    samples += static_cast<size_t>(one.at_us_size());
  }
  EXPECT_EQ(all.nodes_size(), kMaxNodesWithUsage);
  EXPECT_LE(samples, kMaxUsageSamplesOfJob);
  EXPECT_GT(samples, kMaxUsageSamplesOfJob / 4);
  larger.End();
  samples = 0;
  const v1::JobUsage ended = larger.All();
  for (const v1::NodeUsageHistory& one : ended.nodes()) {
    samples += static_cast<size_t>(one.at_us_size());
  }
  EXPECT_LE(samples, kMaxUsageSamplesOfEnded);
  EXPECT_GE(samples, kMaxNodesWithUsage);
}

}  // namespace

}  // namespace cadre::job
