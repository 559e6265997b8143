#include "rendezvous/web/metrics_text.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

namespace cadre::web {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

v1::JobStatus Job(const std::string& name, v1::JobPhase phase) {
  v1::JobStatus job;
  job.set_name(name);
  job.set_phase(phase);
  job.set_nodes_in(2);
  job.set_workers_running(4);
  return job;
}

TEST(MetricsTextTest, AServerInReserveSaysThatAlone) {
  EXPECT_THAT(MetricsText(std::nullopt),
              AllOf(HasSubstr("\ncadre_leads 0\n"), Not(HasSubstr("cadre_jobs"))));
}

TEST(MetricsTextTest, SumsAndJobsThatLive) {
  host::ServerView view;
  view.jobs = {Job("a", v1::RUNNING), Job("b", v1::FAILED), Job("c", v1::RUNNING)};
  view.jobs[0].mutable_progress()->set_loss(0.25);
  view.jobs[0].mutable_progress()->set_samples_per_second(1234.5);
  // A job that reports no loss, or whose loss the reader may not see.
  view.jobs.push_back(Job("d", v1::RUNNING));
  view.jobs[3].mutable_progress()->set_step(7);
  view.streams = 3;
  const std::string text = MetricsText(view);
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("\ncadre_leads 1\n"), HasSubstr("\ncadre_jobs{phase=\"running\"} 3\n"),
            HasSubstr("\ncadre_jobs{phase=\"failed\"} 1\n"),
            HasSubstr("\ncadre_jobs{phase=\"cancelled\"} 0\n"), HasSubstr("\ncadre_nodes 6\n"),
            HasSubstr("\ncadre_streams 3\n"), HasSubstr("\ncadre_job_loss{name=\"a\"} 0.25\n"),
            HasSubstr("\ncadre_job_samples_per_second{name=\"a\"} 1234.5\n"),
            HasSubstr("\ncadre_job_generation{name=\"c\"} 0\n")));
  // Job b has ended, and c has reported nothing.
  EXPECT_THAT(text, AllOf(Not(HasSubstr("{name=\"b\"}")), Not(HasSubstr("loss{name=\"c\"}")),
                          HasSubstr("\ncadre_job_step{name=\"d\"} 7\n"),
                          Not(HasSubstr("loss{name=\"d\"}"))));
}

TEST(MetricsTextTest, FiguresOfTheProgramsOwn_AndHowLongItTakesStill) {
  host::ServerView view;
  view.jobs = {Job("a", v1::RUNNING), Job("b", v1::RUNNING)};
  v1::JobProgress* progress = view.jobs[0].mutable_progress();
  progress->set_total(1000);
  progress->set_left_us(2500000);
  v1::Figure* figure = progress->add_figures();
  figure->set_name("eval/acc");
  figure->set_value(0.75);
  view.jobs[1].mutable_progress()->set_step(1);
  const std::string text = MetricsText(view);
  EXPECT_THAT(text, HasSubstr("\ncadre_job_figure{name=\"a\",figure=\"eval/acc\"} 0.75\n"));
  EXPECT_THAT(text, HasSubstr("\ncadre_job_total_steps{name=\"a\"} 1000\n"));
  EXPECT_THAT(text, HasSubstr("\ncadre_job_seconds_left{name=\"a\"} 2.5\n"));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("total_steps{name=\"b\"")),
                          Not(HasSubstr("seconds_left{name=\"b\""))));
}

TEST(MetricsTextTest, CountersByKind_AHistogramAddsUp) {
  host::ServerView view;
  NodeMessageReceived said;
  said.message.mutable_renew();
  view.counters.Count(said);
  for (const double ms : {0.2, 3.0, 60000.0}) view.counters.CountCommit(absl::Milliseconds(ms));
  EXPECT_THAT(MetricsText(view),
              AllOf(HasSubstr("\ncadre_node_messages_total{kind=\"renew\"} 1\n"),
                    HasSubstr("\ncadre_store_operations_total{operation=\"barrier\"} 0\n"),
                    HasSubstr("\ncadre_restarts_total{cause=\"node_lost\"} 0\n"),
                    HasSubstr("\ncadre_commit_seconds_bucket{le=\"0.0001\"} 0\n"),
                    HasSubstr("\ncadre_commit_seconds_bucket{le=\"0.00025\"} 1\n"),
                    HasSubstr("\ncadre_commit_seconds_bucket{le=\"5\"} 2\n"),
                    HasSubstr("\ncadre_commit_seconds_bucket{le=\"+Inf\"} 3\n"),
                    HasSubstr("\ncadre_commit_seconds_count 3\n")));
}

TEST(MetricsTextTest, SeriesAreBounded_AndLabelsQuoted) {
  host::ServerView view;
  for (size_t i = 0; i < kJobsWithSeries + 5; ++i) {
    view.jobs.push_back(Job(i == 0 ? "a\"\\\nb" : absl::StrCat("j", i), v1::RUNNING));
  }
  const std::string text = MetricsText(view);
  EXPECT_THAT(text, HasSubstr("{name=\"a\\\"\\\\\\nb\"}"));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("{name=\"j", kJobsWithSeries - 1, "\"}")));
  EXPECT_THAT(text, Not(HasSubstr(absl::StrCat("{name=\"j", kJobsWithSeries, "\"}"))));
}

}  // namespace
}  // namespace cadre::web
