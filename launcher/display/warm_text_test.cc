#include "launcher/display/warm_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

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
