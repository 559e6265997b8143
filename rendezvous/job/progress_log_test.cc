#include "rendezvous/job/progress_log.h"

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::job {
namespace {

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
  // Another rate with the same step, and the steps of faster ones, are no sign that the job gets
  // on.
  EXPECT_FALSE(log.Note(job, "a", At(6, 20), Second(14)));
  EXPECT_FALSE(log.Note(job, "b", At(9), Second(15)));
  EXPECT_EQ(quiet(15), 2000000);
  EXPECT_TRUE(log.Note(job, "a", At(7), Second(19)));
  EXPECT_EQ(log.Current(job, Second(19))->usual_us(), 3000000);
  EXPECT_EQ(quiet(19), 0);
}

TEST(ProgressLog, StepOf_IsNoneWhereStepsAreCountedAnew) {
  ProgressLog log;
  const state::Job job = TwoNodes(1);
  EXPECT_FALSE(log.StepOf(job).has_value());
  log.Note(job, "a", At(900), Second(11));
  log.Note(job, "b", At(899), Second(11));
  EXPECT_EQ(log.StepOf(job), 899u);
  // Another epoch.
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

  // A server that began anew while the generation ran does not take the first that it hears for it.
  ProgressLog later;
  later.BeginAt(MonoTime::FromMicros(job.saved.times().created_us() + 9200));
  later.Note(job, "a", At(3), MonoTime::FromMicros(job.saved.times().created_us() + 9600));
  EXPECT_EQ(MakeTimeline("j", job, later).recoveries(0).first_progress_us(), 0);
}

}  // namespace
}  // namespace cadre::job
