#include "launcher/display/timeline_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

v1::Timeline Recovered() {
  v1::Timeline timeline;
  timeline.set_job("mnist");
  v1::GenerationTimeline* first = timeline.add_generations();
  first->set_generation(1);
  first->set_world_size(4);
  first->set_formed_us(500000);
  first->set_running_us(1500000);
  first->set_failed_us(5000000);
  first->set_stopping_us(5000000);
  first->set_stopped_us(5250000);
  first->set_end_reason("rank <1> & \"co\" \x1b died");
  v1::GenerationTimeline* second = timeline.add_generations();
  second->set_generation(2);
  second->set_world_size(4);
  second->set_rejoined(3);
  second->set_warm(1);
  second->set_imports_us(1700000);
  second->set_gathering_us(5250000);
  second->set_formed_us(5260000);
  second->set_running_us(6000000);
  v1::Recovery* recovery = timeline.add_recoveries();
  recovery->set_from_generation(1);
  recovery->set_to_generation(2);
  recovery->set_stop_us(250000);
  recovery->set_total_us(1000000);
  recovery->set_reason("rank 1 died");
  for (int i = 0; i < 50; ++i) {
    v1::ProgressSample* sample = timeline.add_progress();
    sample->set_generation(i < 25 ? 1 : 2);
    sample->set_at_us(1600000 + i * 136000);
    sample->set_step(i);
    sample->set_samples_per_second(100);
    sample->set_loss(i == 30 ? NAN : 1.0 / (i + 1));
  }
  return timeline;
}

TEST(TimelineText, HasGenerationsRecoveriesAndAFewMomentsOfProgress) {
  const std::string text = TimelineText(Recovered());
  EXPECT_THAT(text, AllOf(HasSubstr("RECOVERY"), HasSubstr("1 to 2"), HasSubstr("250ms"),
                          HasSubstr("4, 3 in place, 1 warm"), HasSubstr("1.7s"),
                          HasSubstr("SAMPLES/S"), HasSubstr("1.0000"), HasSubstr("0.0200")));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3 + 1 + 2 + 1 + 11);
}

TEST(TimelineText, WhatNobodyReports_IsNoFigure) {
  v1::Timeline timeline;
  timeline.add_progress()->set_step(7);
  EXPECT_THAT(TimelineText(timeline), HasSubstr("7     -          -\n"));
}

TEST(TimelineText, WhoCameTooLate_IsNamed) {
  v1::Timeline timeline;
  timeline.add_generations()->set_end_reason("rank 1 died");
  timeline.mutable_generations(0)->set_late("rank 2 did not give it up");
  EXPECT_THAT(TimelineText(timeline), HasSubstr("rank 1 died; rank 2 did not give it up"));
}

TEST(TimelineText, Timeline_HasEveryPhase) {
  v1::Timeline timeline;
  v1::GenerationTimeline& g = *timeline.add_generations();
  g.set_generation(1);
  g.set_nodes(2);
  g.set_world_size(4);
  g.set_formed_us(10000);
  g.set_running_us(30000);
  g.set_failed_us(1030000);
  g.set_stopping_us(1030000);
  g.set_stopped_us(1035000);
  g.set_end_reason("rank 1: signal 9");
  const std::string text = TimelineText(timeline);
  for (const char* expected : {"10ms", "20ms", "1s", "5ms", "rank 1: signal 9"}) {
    EXPECT_THAT(text, HasSubstr(expected));
  }
}

TEST(TimelineText, NothingYet_IsATableWithoutRows) {
  EXPECT_EQ(TimelineText({}).find("RECOVERY"), std::string::npos);
}

TEST(EndOf, AGenerationThatRuns_IsKnownUpToItsLastProgress) {
  const v1::Timeline timeline = Recovered();
  EXPECT_EQ(EndOf(timeline, timeline.generations(0)), 5250000);
  EXPECT_EQ(EndOf(timeline, timeline.generations(1)), 1600000 + 49 * 136000);
}

TEST(TimelineSvg, IsOneDocumentWithItsTextEscaped) {
  const std::string svg = TimelineSvg(Recovered());
  EXPECT_THAT(svg, AllOf(HasSubstr("<svg xmlns"), HasSubstr("</svg>\n"), HasSubstr("generation 2"),
                         HasSubstr("rank &lt;1&gt; &amp; &quot;co&quot;"), HasSubstr("samples/s")));
  EXPECT_THAT(svg, AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
  EXPECT_THAT(TimelineSvg({}), HasSubstr("</svg>"));
}

TEST(WarmTextTest, NodesSayHowTheirWorkersBeganAndWhatWasImported) {
  v1::JobStatus job;
  job.add_nodes()->set_name("other");
  v1::NodeStatus* plain = job.add_nodes();
  plain->set_name("n0");
  plain->set_why_plain("its first\x1b start");
  plain->mutable_imports()->set_worker_us(1900000);
  v1::NodeStatus* warm = job.add_nodes();
  warm->set_name("n1");
  warm->set_warm(2);
  warm->mutable_imports()->set_worker_us(1);
  warm->mutable_imports()->set_template_modules(1130);
  warm->mutable_imports()->set_template_us(2100000);
  v1::NodeStatus* both = job.add_nodes();
  both->set_name("n2");
  both->set_warm(1);
  both->set_why_plain("why");
  EXPECT_EQ(WarmStartsTable(job),
            "NODE  STARTED                       IMPORTS  TEMPLATE\n"
            "n0    plainly: its first\\x1b start  1.9s     -\n"
            "n1    2 warm                        0        1130 modules in 2.1s\n"
            "n2    1 warm, others plainly: why   -        -\n");
}

TEST(WarmTextTest, ThereIsNoTableWhereNoProgramCouldBeWarm) {
  v1::JobStatus job;
  job.add_nodes()->set_name("n0");
  EXPECT_EQ(WarmStartsTable(job), "");
  EXPECT_EQ(PlainStartsText({}), "");
}

TEST(WarmTextTest, ATimelineSaysWhyWorkersWereStartedPlainly) {
  v1::Timeline timeline;
  timeline.add_generations()->set_generation(1);
  v1::GenerationTimeline* second = timeline.add_generations();
  second->set_generation(2);
  second->set_why_plain("its template is still importing");
  v1::GenerationTimeline* third = timeline.add_generations();
  third->set_generation(3);
  third->set_warm(3);
  third->set_why_plain("it does not answer");
  second->add_left_to_workers("wandb: asks for the time");
  third->add_left_to_workers("wandb: asks for the time");
  third->add_left_to_workers("hub: copies\x1b the environment");
  EXPECT_EQ(PlainStartsText(timeline),
            "generation 2: started plainly, not warm: its template is still importing\n"
            "generation 3: some workers started plainly, not warm: it does not answer\n"
            "imported by each worker itself: hub: copies\\x1b the environment\n"
            "imported by each worker itself: wandb: asks for the time\n");
}

}  // namespace
}  // namespace cadre::launcher
