#include "launcher/display/status_block.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::JobStatus Running() {
  v1::JobStatus status;
  status.set_name("mnist");
  status.set_phase(v1::RUNNING);
  status.set_generation(1);
  status.set_nodes_in(2);
  status.set_world_size(4);
  status.set_workers_running(4);
  status.set_max_restarts(3);
  return status;
}

v1::NodeRange Two() {
  v1::NodeRange nodes;
  nodes.set_min(2);
  nodes.set_max(2);
  return nodes;
}

TEST(StatusBlockTest, Running_SaysNodesWorkersRestarts) {
  const auto lines = StatusBlock(Running(), {}, Two(), 100, false);
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0], "cadre mnist | running | nodes 2/2 | workers 4/4 | restarts 0/3");
}

TEST(StatusBlockTest, ProgressAndWaiting_HaveTheirLines) {
  v1::JobStatus status = Running();
  status.set_waiting_for("1 of 2 nodes, until 10 s");
  v1::Progress progress;
  progress.set_step(12);
  progress.set_samples_per_second(100);
  progress.set_loss(0.5);
  const auto lines = StatusBlock(status, {progress, progress}, Two(), 100, false);
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_EQ(lines[1], "  step 12 | 200 samples/s | loss 0.5000");
  EXPECT_EQ(lines[2], "  waiting for 1 of 2 nodes, until 10 s");
}

TEST(StatusBlockTest, ProgressOfTheWholeJob_ComesBeforeThatOfThisNode) {
  v1::JobStatus status = Running();
  status.mutable_progress()->set_workers(4);
  status.mutable_progress()->set_step(9);
  status.mutable_progress()->set_max_step(12);
  status.mutable_progress()->set_slowest_rank(3);
  status.mutable_progress()->set_samples_per_second(400);
  v1::Progress here;
  here.set_step(12);
  const auto lines = StatusBlock(status, {here}, Two(), 100, false);
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(lines[1], "  step 9 (rank 3; others up to 12) | 400 samples/s");
}

TEST(StatusBlockTest, WhenNoStepComes_ThatIsSaidInThePlaceOfTheRate_AndWhereTheRanksAre) {
  v1::JobStatus status = Running();
  v1::JobProgress* progress = status.mutable_progress();
  progress->set_workers(4);
  progress->set_step(20);
  progress->set_samples_per_second(300);
  progress->set_loss(0.5);
  progress->set_usual_us(1000000);
  progress->set_quiet_us(4000000);
  EXPECT_EQ(StatusBlock(status, {}, Two(), 100, false)[1],
            "  step 20 | 300 samples/s | loss 0.5000");
  progress->set_quiet_us(25000000);
  status.set_stall("rank 1 at hang.py:7, 3 ranks wait for it in all_reduce");
  const auto lines = StatusBlock(status, {}, Two(), 100, false);
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_EQ(lines[1], "  step 20 | no step for 25s | loss 0.5000");
  EXPECT_EQ(lines[2], "  rank 1 at hang.py:7, 3 ranks wait for it in all_reduce");
}

TEST(StatusLinesTest, AStandstillIsSaidOnce_AndTheNextOneAgain) {
  StatusLines plain;
  v1::JobStatus status = Running();
  plain.Update(status);
  // The server has not waited for so long as the agent that looked.
  status.mutable_progress()->set_quiet_us(4999000);
  status.set_stall("rank 1 at hang.py:7, 3 ranks wait for it in all_reduce");
  EXPECT_THAT(plain.Update(status), IsEmpty());
  status.mutable_progress()->set_quiet_us(25000000);
  const auto said =
      ElementsAre("no step for 25s: rank 1 at hang.py:7, 3 ranks wait for it in all_reduce");
  EXPECT_THAT(plain.Update(status), said);
  status.set_stall("rank 1 at hang.py:9, 3 ranks wait for it in all_reduce");
  EXPECT_THAT(plain.Update(status), IsEmpty());
  status.clear_stall();
  EXPECT_THAT(plain.Update(status), IsEmpty());
  status.set_stall("rank 1 at hang.py:7, 3 ranks wait for it in all_reduce");
  EXPECT_THAT(plain.Update(status), said);
}

TEST(StatusBlockTest, StopReason_IsShownAndSaidOnce) {
  v1::JobStatus status = Running();
  status.set_phase(v1::STOPPING);
  status.set_stop_reason("rank 1 hangs");
  EXPECT_THAT(StatusBlock(status, {}, Two(), 100, false)[1], HasSubstr("stopping: rank 1 hangs"));
  StatusLines plain;
  EXPECT_THAT(plain.Update(status), ElementsAre("stopping generation 1: rank 1 hangs"));
  EXPECT_THAT(plain.Update(status), IsEmpty());
}

TEST(StatusLinesTest, WhereNoRestartIsLeftTheVerdictSaysWhy) {
  v1::JobStatus status = Running();
  status.set_phase(v1::STOPPING);
  status.set_stop_reason("rank 1 on n0 exited with status 1: KeyError: 'k' (a.py, line 2)");
  EXPECT_THAT(StatusLines().Update(status),
              ElementsAre(HasSubstr("exited with status 1: KeyError: 'k' (a.py, line 2)")));
  status.set_max_restarts(0);
  EXPECT_THAT(StatusLines().Update(status),
              ElementsAre("stopping generation 1: rank 1 on n0 exited with status 1"));
}

TEST(StatusBlockTest, NarrowTerminal_LinesAreCut) {
  v1::JobStatus status = Running();
  status.set_waiting_for(std::string(200, 'x'));
  for (const std::string& line : StatusBlock(status, {}, Two(), 20, false)) {
    EXPECT_LE(line.size(), 20u);
  }
}

TEST(StatusBlockTest, PeersText_IsEscaped) {
  v1::JobStatus status = Running();
  status.set_waiting_for("\x1b[2J");
  EXPECT_THAT(StatusBlock(status, {}, Two(), 100, false)[1], HasSubstr("\\x1b[2J"));
}

TEST(PaceTest, TimeLeftIsThatOfTheStepsSinceTheFirst) {
  v1::JobStatus status = Running();
  Pace pace;
  const MonoTime begin = MonoTime::FromMicros(1000000);
  EXPECT_EQ(pace.Text(status, {}, begin), "");
  v1::Progress here;
  here.set_step(100);
  EXPECT_EQ(pace.Text(status, {here}, begin), "");
  here.set_total(1000);
  v1::Figure* rate = here.add_figures();
  rate->set_name("lr");
  rate->set_value(0.0003);
  EXPECT_EQ(pace.Text(status, {here}, begin), "100 of 1000 steps | 0:00 gone | lr 0.0003");
  here.set_step(400);
  EXPECT_EQ(pace.Text(status, {here}, begin + absl::Seconds(75)),
            "400 of 1000 steps | 1:15 gone, 2:30 left | lr 0.0003");
  // A generation that began again at an earlier step.
  status.set_generation(2);
  here.set_step(300);
  EXPECT_EQ(pace.Text(status, {here}, begin + absl::Seconds(100)),
            "300 of 1000 steps | 1:40 gone | lr 0.0003");
  here.set_step(310);
  EXPECT_EQ(pace.Text(status, {here}, begin + absl::Seconds(200)),
            "310 of 1000 steps | 3:20 gone, 1:55:00 left | lr 0.0003");
}

TEST(PaceTest, ANodeWhoseWorkersTellNoFigures_ShowsThoseOfTheJob) {
  v1::JobStatus status = Running();
  status.mutable_progress()->set_workers(1);
  status.mutable_progress()->set_step(5);
  status.mutable_progress()->set_total(9);
  status.mutable_progress()->add_figures()->set_name("lr");
  EXPECT_EQ(Pace().Text(status, {}, MonoTime::FromMicros(1)), "5 of 9 steps | 0:00 gone | lr 0");
}

TEST(NodesTableTest, ANodeWithoutRank_IsASpareOnlyOfARunningJob) {
  v1::JobStatus status = Running();
  v1::NodeStatus& first = *status.add_nodes();
  first.set_name("n0");
  first.set_host("h0");
  first.set_slots(2);
  first.set_first_rank(2);
  first.set_node_rank(1);
  v1::NodeStatus& second = *status.add_nodes();
  second.set_name("n1");
  second.set_host("h1");
  second.set_slots(2);
  second.set_node_rank(-1);
  EXPECT_EQ(NodesTable(status),
            "NODE  HOST  SLOTS  NODE RANK  RANKS\n"
            "n0    h0    2      1          2-3\n"
            "n1    h1    2      spare      -\n");
  first.set_slots(1);
  EXPECT_THAT(NodesTable(status), HasSubstr("n0    h0    1      1          2\n"));
  status.set_phase(v1::GATHERING);
  EXPECT_THAT(NodesTable(status), HasSubstr("n1    h1    2      -          -\n"));
}

TEST(StatusLinesTest, EachChange_IsSaidOnce) {
  StatusLines lines;
  v1::JobStatus status = Running();
  status.set_phase(v1::GATHERING);
  status.set_waiting_for("nodes: 1 of 2");
  EXPECT_THAT(lines.Update(status), ElementsAre("waiting for nodes: 1 of 2"));
  EXPECT_THAT(lines.Update(status), IsEmpty());
  status = Running();
  status.set_workers_running(3);
  EXPECT_THAT(lines.Update(status), ElementsAre("generation 1 formed: 2 nodes, 4 workers"));
  EXPECT_THAT(lines.Update(Running()), ElementsAre("generation 1 running"));
  EXPECT_THAT(lines.Update(Running()), IsEmpty());
  status = Running();
  status.set_generation(2);
  status.set_restarts(1);
  status.set_ended_generation(1);
  status.set_end_reason("rank 1 died");
  EXPECT_THAT(lines.Update(status),
              ElementsAre("generation 1 ended: rank 1 died", "restart 1 of 3",
                          "generation 2 formed: 2 nodes, 4 workers", "generation 2 running"));
}

TEST(StatusLinesTest, NodesInReserve_AreNoneOfTheGeneration) {
  StatusLines lines;
  v1::JobStatus status = Running();
  status.set_nodes_in(3);
  for (const int node_rank : {0, 1, -1}) status.add_nodes()->set_node_rank(node_rank);
  EXPECT_THAT(lines.Update(status),
              ElementsAre("generation 1 formed: 2 nodes, 4 workers; 1 more node in reserve",
                          "generation 1 running"));
}

}  // namespace
}  // namespace cadre::launcher
