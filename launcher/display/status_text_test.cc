#include "launcher/display/status_text.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
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
  // The server has measured a little less time than the agent that found the hang.
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
  // A generation that continued from an earlier step.
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

using ::testing::ContainsRegex;
using ::testing::Not;

v1::JobStatus RunningForTable() {
  v1::JobStatus job;
  job.set_name("mnist");
  job.set_phase(v1::RUNNING);
  job.set_generation(2);
  job.add_nodes();
  job.set_workers_running(3);
  job.set_world_size(4);
  job.set_restarts(1);
  job.set_max_restarts(5);
  job.set_waiting_for("1 worker to start");
  return job;
}

// A day, two hours, three minutes and four seconds after kBeganMs.
const absl::Time kNow = absl::FromUnixSeconds(1796045222);
constexpr int64_t kBeganMs = 1795951438000;

std::string Table(const std::vector<v1::JobStatus>& jobs) { return JobsTable(jobs, kNow); }

TEST(JobsTableTest, ALineForEachJob) {
  EXPECT_THAT(Table({RunningForTable()}),
              ContainsRegex("- +mnist +- +running +1 +3/4 +1/5 +- +- +1 worker to start\n"));
  v1::JobStatus still = RunningForTable();
  still.clear_waiting_for();
  still.mutable_progress()->set_step(7);
  EXPECT_THAT(Table({still}), HasSubstr("  step 7\n"));
  still.set_stall("rank 1 at hang.py:7");
  EXPECT_THAT(Table({still}), HasSubstr("  step 7; rank 1 at hang.py:7\n"));
  v1::JobStatus stopping = RunningForTable();
  stopping.set_stop_reason("rank 1 exited with status 3");
  EXPECT_THAT(Table({stopping}), HasSubstr("  rank 1 exited with status 3\n"));
}

TEST(JobsTableTest, TheTimesOfASubmittedJob) {
  v1::JobStatus job = RunningForTable();
  job.set_name("mnist-57");
  job.set_submitted_name("mnist");
  job.set_submission(57);
  job.set_user("ann");
  job.set_began_unix_ms(kBeganMs);
  job.set_limit_us(1800 * 1000000ll - 1);
  EXPECT_EQ(Table({job}),
            "ID  NAME   USER  STATE    NODES  WORKERS  RESTARTS  ELAPSED     LIMIT  "
            "PROGRESS, REASON\n"
            "57  mnist  ann   running  1      3/4      1/5       1-02:03:04  30:00  "
            "1 worker to start\n");
  job.set_ended_unix_ms(kBeganMs + 3600 * 1000);
  EXPECT_THAT(Table({job}), HasSubstr("  01:00:00  "));
  job.set_ended_unix_ms(kBeganMs + 61 * 1000);
  EXPECT_THAT(Table({job}), HasSubstr("  01:01  "));
  // The clock of this machine may be behind the server's.
  job.set_ended_unix_ms(kBeganMs - 1000);
  EXPECT_THAT(Table({job}), HasSubstr("  00:00  "));
}

TEST(JobsTableTest, PrioritiesAreShownIfThereAreAny) {
  v1::JobStatus job = RunningForTable();
  EXPECT_THAT(Table({job}), Not(HasSubstr("PRIORITY")));
  job.set_priority(-3);
  EXPECT_THAT(Table({RunningForTable(), job}), HasSubstr("LIMIT  PRIORITY  PROGRESS, REASON\n"));
  EXPECT_THAT(Table({job}), ContainsRegex(" - +-3 +1 worker to start\n"));
}

TEST(JobsTableTest, AnEndedJobHadWorkersAndRunsNone) {
  v1::JobStatus ended = RunningForTable();
  ended.set_phase(v1::FAILED);
  ended.set_workers_running(0);
  ended.mutable_verdict()->set_message("no luck");
  ended.mutable_verdict()->set_exit_status(3);
  EXPECT_THAT(Table({ended}),
              ContainsRegex("mnist +- +failed \\(3\\) +1 +4 +1/5 +- +- +no luck\n"));
  ended.clear_nodes();
  ended.set_nodes_in(16);
  EXPECT_THAT(Table({ended}), ContainsRegex("failed \\(3\\) +16 +4 +1/5"));
  ended.set_nodes_in(1);
  ended.set_world_size(0);
  EXPECT_THAT(Table({ended}), ContainsRegex("failed \\(3\\) +1 +- +1/5"));
  ended.set_phase(v1::CANCELLED_PHASE);
  EXPECT_THAT(Table({ended}), ContainsRegex("cancelled +1 +- +1/5"));
}

TEST(JobsTableTest, ItsUserIsWhoSubmittedItOrWhoseTokenBeganIt) {
  v1::JobStatus job = RunningForTable();
  job.set_started_by("ann");
  EXPECT_THAT(Table({job}), ContainsRegex("mnist +ann +running"));
  job.set_user("ben");
  EXPECT_THAT(Table({job}), ContainsRegex("mnist +ben +running"));
}

TEST(JobsTableTest, ALongReasonIsShortenedToItsBeginning) {
  v1::JobStatus ended = RunningForTable();
  ended.mutable_verdict()->set_message("first cause\n" + std::string(3000, '-') + " last");
  const std::string table = Table({ended});
  EXPECT_THAT(table, HasSubstr("  first cause\\n---"));
  EXPECT_THAT(table, HasSubstr("---...\n"));
  EXPECT_THAT(table, Not(HasSubstr("last")));
  EXPECT_LT(table.size(), 400u);
}

v1::JobStatus Queued(const std::string& name, int priority, uint64_t submission) {
  v1::JobStatus job;
  job.set_name(name);
  job.set_phase(v1::QUEUED);
  job.set_user("ann");
  job.set_priority(priority);
  job.set_submission(submission);
  job.set_waiting_for(name + "'s nodes");
  return job;
}

TEST(JobsTableTest, WhatRunsThenTheQueueThenWhatHasEnded) {
  const auto job = [](const std::string& name, v1::JobPhase phase, int64_t at, const char* run) {
    v1::JobStatus made;
    made.set_name(name);
    made.set_phase(phase);
    made.set_run(run);
    if (phase == v1::RUNNING) made.set_began_unix_ms(at);
    if (phase == v1::RUNNING) return made;
    made.set_ended_unix_ms(at);
    made.mutable_verdict()->set_outcome(phase);
    return made;
  };
  const std::string table = Table(
      {job("e-known", v1::FAILED, 5, ""), job("f-older", v1::SUCCEEDED, 0, "20260101T000000Z"),
       job("f-newer", v1::SUCCEEDED, 0, "20260102T000000Z"), job("e-last", v1::SUCCEEDED, 9, ""),
       Queued("q-low", 0, 2), Queued("q-late", 5, 4), Queued("q-first", 5, 3),
       job("r-old", v1::RUNNING, 7, ""), job("r-new", v1::RUNNING, 8, "")});
  std::vector<std::string> names;
  for (const absl::string_view line : absl::StrSplit(table, '\n', absl::SkipEmpty())) {
    names.push_back(std::vector<std::string>(absl::StrSplit(line, ' ', absl::SkipEmpty()))[1]);
  }
  EXPECT_THAT(names, ElementsAre("NAME", "r-new", "r-old", "q-first", "q-late", "q-low", "e-last",
                                 "e-known", "f-newer", "f-older"));
}

TEST(JobTextTest, ALineForEachPropertyThatIsKnown) {
  v1::JobStatus job;
  job.set_name("mnist-57");
  job.set_phase(v1::QUEUED);
  job.set_waiting_for("2 nodes\x1b");
  const absl::TimeZone zone = absl::FixedTimeZone(3600);
  EXPECT_EQ(JobText(job, kNow, zone),
            "job       mnist-57\n"
            "user      -\n"
            "state     queued\n"
            "restarts  0/0\n"
            "reason    2 nodes\\x1b\n");
  job = RunningForTable();
  job.set_name("mnist-57");
  job.set_submitted_name("mnist");
  job.set_submission(57);
  job.set_user("ann");
  job.set_phase(v1::FAILED);
  job.set_submitted_unix_ms(kBeganMs - 60000);
  job.set_began_unix_ms(kBeganMs);
  job.set_ended_unix_ms(kBeganMs + 7384000);
  job.set_limit_us(86400 * 1000000ll);
  job.mutable_verdict()->set_exit_status(3);
  job.mutable_verdict()->set_message("rank 1 exited with status 3");
  EXPECT_EQ(JobText(job, kNow, zone),
            "job           mnist-57\n"
            "submitted as  mnist\n"
            "id            57\n"
            "user          ann\n"
            "state         failed\n"
            "exit status   3\n"
            "priority      0\n"
            "submitted     2026-11-29 12:22:58\n"
            "began         2026-11-29 12:23:58\n"
            "ended         2026-11-29 14:27:02\n"
            "elapsed       02:03:04\n"
            "limit         1-00:00:00\n"
            "nodes         1\n"
            "workers       4\n"
            "generation    2\n"
            "restarts      1/5\n"
            "reason        rank 1 exited with status 3\n");
}

// The element of array 12 with this index. kNow is 2026-11-30 13:27:02 UTC.
v1::JobStatus Element(uint32_t index) {
  v1::JobStatus job = Queued("sweep", 0, 12 + index);
  job.set_waiting_for("its turn");
  job.set_array(12);
  job.set_array_index(index);
  job.set_array_size(5);
  job.set_array_at_once(2);
  return job;
}

TEST(JobsTableTest, ElementsOfAnArrayThatWaitAreOneLine) {
  v1::JobStatus runs = Element(0);
  runs.set_phase(v1::RUNNING);
  v1::JobStatus held = Element(4);
  held.set_held(true);
  EXPECT_EQ(Table({Element(3), Element(1), runs, Element(2), held}),
            "ID        NAME   USER  STATE    NODES  WORKERS  RESTARTS  ELAPSED  LIMIT  "
            "PROGRESS, REASON\n"
            "12_0      sweep  ann   running  0      -        0/0       -        -      its turn\n"
            "12_[1-3]  sweep  ann   queued   0      -        0/0       -        -      its turn\n"
            "12_4      sweep  ann   queued   0      -        0/0       -        -      its turn\n");
}

TEST(QueueTextTest, WhatAJobWaitsForAndWhenItIsExpectedToBegin) {
  const absl::TimeZone zone = absl::UTCTimeZone();
  EXPECT_EQ(QueueText(Queued("mnist", 0, 7), kNow, zone), "");
  v1::JobStatus job = Element(3);
  job.set_held(true);
  job.set_begins_from_unix_ms(absl::ToUnixMillis(kNow + absl::Minutes(38)));
  job.set_begins_until_unix_ms(absl::ToUnixMillis(kNow + absl::Minutes(123)));
  job.mutable_queue()->set_begin_unix_ms(absl::ToUnixMillis(kNow + absl::Minutes(10)));
  job.mutable_queue()->set_deadline_unix_ms(absl::ToUnixMillis(kNow + absl::Hours(24)));
  v1::Dependency* const dependency = job.mutable_queue()->add_dependencies();
  dependency->set_kind(v1::Dependency::AFTER_OK);
  dependency->set_job(7);
  EXPECT_EQ(QueueText(job, kNow, zone),
            "it is element 3 of array 12, of which 2 run at the same time\n"
            "it is held: 'cadre release 15' lets it begin\n"
            "it depends on afterok:7\n"
            "it does not begin before 13:37\n"
            "expected to begin between 14:05 and 15:30\n"
            "it is cancelled if it has not ended by 2026-12-01 13:27\n");
  const std::string text = JobText(job, kNow, zone);
  EXPECT_THAT(text, HasSubstr("array              12, element 3 (5 elements)\n"));
  EXPECT_THAT(text, HasSubstr("held               until it is released\n"));
  EXPECT_THAT(text, HasSubstr("depends on         afterok:7\n"));
  EXPECT_THAT(text, HasSubstr("expected to begin  between 14:05 and 15:30\n"));
  job.clear_begins_from_unix_ms();
  EXPECT_THAT(QueueText(job, kNow, zone), HasSubstr("expected to begin at about 15:30\n"));
  job.set_phase(v1::RUNNING);
  job.set_held(false);
  EXPECT_EQ(QueueText(job, kNow, zone),
            "it is element 3 of array 12, of which 2 run at the same time\n");
}

v1::ClusterNodeStatus* AddNode(v1::ListNodesReply* nodes, const std::string& name) {
  v1::ClusterNodeStatus* node = nodes->add_nodes();
  node->set_name(name);
  node->set_cpus(4);
  node->set_connected(true);
  return node;
}

class ClusterTextTest : public testing::Test {
 protected:
  ClusterTextTest() {
    v1::ClusterNodeStatus* n0 = AddNode(&nodes_, "n0");
    v1::Part* part = n0->add_parts();
    part->set_job("mnist");
    part->set_cpus(3);
    (*n0->mutable_labels())["switch"] = "s1";
    (*n0->mutable_labels())["rack"] = "7";
    v1::ClusterNodeStatus* n1 = AddNode(&nodes_, "n1");
    n1->set_drained(true);
    n1->set_drain_reason("fan\x1b");
    n1->set_user("bob");
  }
  v1::ListNodesReply nodes_;
};

TEST_F(ClusterTextTest, ALineForEachNode) {
  const std::string table = ClusterNodesTable(nodes_);
  EXPECT_THAT(table, testing::ContainsRegex(
                         "n0 +up +3/4 +0/0 +- +any but root +rack=7,switch=s1 +mnist\n"));
  EXPECT_THAT(table, testing::ContainsRegex("n1 +up, drained: fan[^\n\x1b]* +0/4 +0/0 +- +bob"));
}

TEST_F(ClusterTextTest, MemoryIsShownInGibibytes) {
  nodes_.mutable_nodes(0)->set_memory(uint64_t{251} << 28);
  nodes_.mutable_nodes(0)->mutable_parts(0)->set_memory(uint64_t{1100} << 20);
  nodes_.mutable_nodes(1)->set_memory(uint64_t{64} << 30);
  nodes_.mutable_nodes(1)->set_leftovers(1);
  const std::string table = ClusterNodesTable(nodes_);
  EXPECT_THAT(table, testing::ContainsRegex("n0 +up +3/4 +0/0 +1.07/62.75 GiB +any but root"));
  EXPECT_THAT(table, HasSubstr("?/64 GiB"));
}

TEST_F(ClusterTextTest, WhatIsNotKnownToBeFreeIsNotShownSo) {
  nodes_.mutable_nodes(0)->set_connected(false);
  nodes_.mutable_nodes(0)->clear_parts();
  nodes_.mutable_nodes(1)->set_leftovers(2);
  const std::string table = ClusterNodesTable(nodes_);
  EXPECT_THAT(table, testing::ContainsRegex("n0 +away +\\?/4 +\\?/0"));
  EXPECT_THAT(table, testing::ContainsRegex(", ending 2 earlier launchers +\\?/4"));
  EXPECT_THAT(ClusterSummary(nodes_, {}), HasSubstr("0 of 0 CPUs in use\n"));
}

TEST_F(ClusterTextTest, TheNodesThatAJobAvoidsAreNamedWithTheReason) {
  v1::JobStatus job;
  EXPECT_EQ(AvoidedText(job), "");
  v1::AvoidedNode* avoided = job.add_avoided();
  avoided->set_node("n0");
  avoided->set_reason("no user\x1b ann");
  EXPECT_EQ(AvoidedText(job), "avoids n0: no user\\x1b ann\n");
  job.add_nodes()->set_name("n0");
  EXPECT_EQ(AvoidedText(job), "") << "it could not run without it";
}

TEST_F(ClusterTextTest, WhatHoldsSlotsAfterItsJobIsNamed) {
  nodes_.mutable_nodes(0)->add_remains("a process of job mnist outlives SIGKILL: pid 7 is in \x1b");
  EXPECT_THAT(ClusterNodesTable(nodes_),
              HasSubstr("\non n0 a process of job mnist outlives SIGKILL: pid 7 is in \\x1b; until "
                        "then its slots stay taken\n"));
}

TEST_F(ClusterTextTest, OfAnotherVersionThanTheServersIsSaid) {
  EXPECT_THAT(ClusterNodesTable(nodes_), testing::Not(HasSubstr("runs Cadre")));
  nodes_.mutable_nodes(0)->set_version("0.2");
  EXPECT_THAT(ClusterNodesTable(nodes_),
              HasSubstr("\nn0 runs Cadre 0.2, which is not the server's version\n"));
}

TEST_F(ClusterTextTest, AFewLinesForAll) {
  EXPECT_EQ(ClusterSummary(v1::ListNodesReply(), {Queued("low", 0, 1)}), "");
  EXPECT_THAT(ClusterSummary(nodes_, {}), HasSubstr("cluster: 2 nodes, 3 of 8 CPUs in use\n"));
  nodes_.mutable_nodes(1)->set_gpus(1);
  EXPECT_THAT(ClusterSummary(nodes_, {}), HasSubstr("3 of 8 CPUs in use, 0 of 1 GPU\n"));
  nodes_.mutable_nodes(1)->set_gpus(0);
  nodes_.mutable_nodes(0)->set_connected(false);
  const std::string summary =
      ClusterSummary(nodes_, {Queued("late", 0, 3), Queued("low", 0, 1), Queued("high", 5, 4)});
  // What runs there is not known, and nothing is free.
  EXPECT_THAT(summary, HasSubstr("cluster: 2 nodes, 0 of 4 CPUs in use\n"));
  EXPECT_THAT(summary, HasSubstr("away: n0\n"));
  EXPECT_THAT(summary, HasSubstr("drained: n1 (fan"));
  EXPECT_THAT(summary,
              HasSubstr("queue: 3 jobs; high of ann, priority 5, waits for high's nodes\n"));
  for (int i = 2; i < 12; ++i) AddNode(&nodes_, "n" + std::to_string(i))->set_connected(false);
  EXPECT_THAT(ClusterSummary(nodes_, {}), HasSubstr("away: n0, n2, n3, n4, n5, n6 and 5 more\n"));
}

TEST_F(ClusterTextTest, APipeIsToldWhatChanges) {
  ClusterLines lines;
  EXPECT_THAT(lines.Update(nodes_), ElementsAre(testing::StartsWith("node n1: up, drained: fan")));
  EXPECT_THAT(lines.Update(nodes_), IsEmpty());
  AddNode(&nodes_, "n2");
  nodes_.mutable_nodes(0)->set_connected(false);
  EXPECT_THAT(lines.Update(nodes_), ElementsAre("node n0: away", "node n2: up"));
  nodes_.mutable_nodes()->DeleteSubrange(0, 1);
  EXPECT_THAT(lines.Update(nodes_), ElementsAre("node n0: gone"));
}

v1::StackGroup GroupOf(const std::vector<uint32_t>& ranks) {
  v1::StackGroup group;
  for (const uint32_t rank : ranks) group.add_ranks(rank);
  return group;
}

void AddFrame(const char* file, uint32_t line, const char* function, const char* source,
              v1::RankStack* stack) {
  v1::StackFrame* frame = stack->add_frames();
  frame->set_file(file);
  frame->set_line(line);
  frame->set_function(function);
  frame->set_own(*source != '\0');
  frame->set_source(source);
}

TEST(StacksText, RanksAreRuns) {
  EXPECT_EQ(RanksText(GroupOf({3})), "3");
  EXPECT_EQ(RanksText(GroupOf({0, 1, 2, 5, 7, 8})), "0-2,5,7-8");
  EXPECT_EQ(RanksText(GroupOf({})), "");
}

TEST(StacksText, ALineForEachPlace) {
  v1::GetStacksReply reply;
  reply.set_world_size(3);
  v1::StackGroup* waits = reply.add_groups();
  *waits = GroupOf({0, 2});
  waits->mutable_first()->mutable_evidence()->set_python(v1::IN_COLLECTIVE);
  waits->mutable_first()->mutable_evidence()->set_python_what("all_reduce");
  waits->mutable_first()->mutable_evidence()->set_python_where("train.py:40 in main");
  v1::StackGroup* native = reply.add_groups();
  *native = GroupOf({1});
  native->mutable_first()->mutable_evidence()->set_node("n1");
  native->mutable_first()->mutable_evidence()->set_pid(17);
  native->mutable_first()->mutable_evidence()->set_summary("pid 17: sleeping (state S)");
  v1::StackGroup* several = reply.add_groups();
  *several = reply.groups(1);
  *several->mutable_ranks() = GroupOf({4, 5}).ranks();
  v1::SilentNode* silent = reply.add_silent();
  silent->set_node("n2");
  silent->set_first_rank(3);
  silent->set_workers(1);
  silent->set_why("has gone");
  EXPECT_EQ(PlacesText(reply),
            "  ranks 0,2 (2 of 3): in all_reduce, from train.py:40 in main\n"
            "  rank 1: pid 17: sleeping (state S)\n"
            "  ranks 4-5 (2 of 3): the first is pid 17: sleeping (state S)\n"
            "node n2 (rank 3): has gone\n");
}

TEST(StacksText, GroupsThenNodesThatAreSilent) {
  v1::GetStacksReply reply;
  reply.set_job("train");
  reply.set_generation(2);
  reply.set_world_size(8);
  v1::StackGroup* waits = reply.add_groups();
  *waits = GroupOf({0, 1, 2, 5});
  waits->mutable_first()->mutable_evidence()->set_python(v1::IN_COLLECTIVE);
  waits->mutable_first()->mutable_evidence()->set_python_what("all_reduce");
  waits->mutable_first()->mutable_evidence()->set_python_where("train.py:40 in main");
  AddFrame("/v/lib/python3.11/site-packages/torch/distributed/c10d.py", 9, "all_reduce", "",
           waits->mutable_first());
  AddFrame("/home/me/train.py", 40, "main", "dist.all_reduce(batch)", waits->mutable_first());
  waits->mutable_first()->set_cut(true);
  v1::StackGroup* native = reply.add_groups();
  *native = GroupOf({3});
  native->mutable_first()->mutable_evidence()->set_node("n1");
  native->mutable_first()->mutable_evidence()->set_pid(17);
  native->mutable_first()->mutable_evidence()->set_summary("pid 17: sleeping (state S)");
  native->mutable_first()->set_no_python("it is no Python program");
  v1::SilentNode* silent = reply.add_silent();
  silent->set_node("n2");
  silent->set_first_rank(6);
  silent->set_workers(2);
  silent->set_why("has gone");
  reply.set_silent_left_out(4);
  EXPECT_EQ(StacksText(reply),
            "job train, generation 2, 8 ranks; the most recent call comes first\n"
            "\n"
            "ranks 0-2,5 (4 of 8): in all_reduce, from train.py:40 in main\n"
            "    torch/distributed/c10d.py:9 in all_reduce\n"
            "  > /home/me/train.py:40 in main\n"
            "        dist.all_reduce(batch)\n"
            "    ... and the calls further out\n"
            "\n"
            "rank 3 on n1, pid 17: no Python stack\n"
            "    (it is no Python program)\n"
            "    pid 17: sleeping (state S)\n"
            "\n"
            "node n2 (ranks 6-7): has gone\n"
            "and 4 more nodes\n");
}

TEST(StacksText, SaysWhatAnInterpreterDoes) {
  v1::GetStacksReply reply;
  const auto says = [&](v1::PythonActivity activity, const char* what, const char* where) {
    reply.clear_groups();
    *reply.add_groups() = GroupOf({0});
    v1::RankEvidence* evidence = reply.mutable_groups(0)->mutable_first()->mutable_evidence();
    evidence->set_python(activity);
    evidence->set_python_what(what);
    evidence->set_python_where(where);
    return StacksText(reply);
  };
  EXPECT_THAT(says(v1::IN_DATA_LOADER, "time.sleep(9)", "data.py:3 in get"),
              HasSubstr(": in the data loader: time.sleep(9), from data.py:3 in get\n"));
  EXPECT_THAT(says(v1::IN_DATA_LOADER, "", ""), HasSubstr(": in the data loader\n"));
  EXPECT_THAT(says(v1::IMPORTING, "x", "train.py:1 in <module>"),
              HasSubstr(": importing modules, from train.py:1 in <module>\n"));
  EXPECT_THAT(says(v1::IN_OWN_CODE, "while True:", "train.py:7 in main"),
              HasSubstr(": at train.py:7 in main\n"));
  EXPECT_THAT(says(v1::IN_OWN_CODE, "wait", ""), HasSubstr(": at wait\n"));
}

TEST(StacksText, TheTextOfOneRankIsMadeSafe) {
  v1::GetStacksReply reply;
  *reply.add_groups() = GroupOf({0});
  reply.mutable_groups(0)->mutable_first()->set_text("== process 3\n\x1b[2Jx\n");
  EXPECT_THAT(StacksText(reply), HasSubstr("\n== process 3\n\\x1b[2Jx\n"));
}

}  // namespace
}  // namespace cadre::launcher
