// Tests what Slurm's commands say about a server's jobs.
#include "launcher/slurm/job_record.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/slurm/job_record_for_test.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

JobRecord One(const v1::JobStatus& job, const v1::ListNodesReply& nodes = {}) {
  const std::vector<JobRecord> records = RecordsOf({job}, nodes);
  EXPECT_EQ(records.size(), 1u);
  return records.empty() ? JobRecord() : records[0];
}

TEST(JobRecordTest, States) {
  EXPECT_EQ(One(TestJob(1, "a", v1::QUEUED)).state, "PENDING");
  v1::JobStatus gathers = TestJob(1, "a", v1::GATHERING);
  EXPECT_EQ(One(gathers).state, "PENDING") << "it was put back into the queue";
  EXPECT_EQ(One(gathers).began, absl::InfinitePast());
  gathers.add_allocated("n1");
  EXPECT_EQ(One(gathers).state, "RUNNING");
  EXPECT_EQ(One(TestJob(1, "a", v1::RUNNING)).state, "RUNNING");
  EXPECT_EQ(One(TestJob(1, "a", v1::STOPPING)).state, "COMPLETING");
  EXPECT_EQ(One(EndedTestJob(1, "a", v1::SUCCEEDED)).state, "COMPLETED");
  EXPECT_EQ(One(EndedTestJob(1, "a", v1::CANCELLED_PHASE)).state, "CANCELLED");
  EXPECT_EQ(One(EndedTestJob(1, "a", v1::FAILED, v1::CRASH)).state, "FAILED");
  EXPECT_EQ(One(EndedTestJob(1, "a", v1::FAILED, v1::TOTAL_TIMEOUT)).state, "TIMEOUT");
  EXPECT_EQ(One(EndedTestJob(1, "a", v1::FAILED, v1::NODE_LOST)).state, "NODE_FAIL");
  EXPECT_EQ(One(EndedTestJob(1, "a", v1::FAILED, v1::OUT_OF_MEMORY)).state, "OUT_OF_MEMORY");
  EXPECT_EQ(One(EndedTestJob(1, "a", v1::FAILED, v1::PREEMPTED)).state, "PREEMPTED");
  EXPECT_EQ(One(EndedTestJob(1, "a", v1::FAILED, v1::REQUEUED)).state, "REQUEUED");
  v1::JobStatus late = EndedTestJob(1, "a", v1::CANCELLED_PHASE, v1::CANCELLED);
  late.mutable_queue()->set_deadline_unix_ms(late.ended_unix_ms() + 1);
  EXPECT_EQ(One(late).state, "CANCELLED");
  late.mutable_queue()->set_deadline_unix_ms(late.ended_unix_ms());
  EXPECT_EQ(One(late).state, "DEADLINE");
}

TEST(JobRecordTest, ReasonsOfAJobThatWaits) {
  v1::JobStatus job = TestJob(1, "a", v1::QUEUED);
  for (const auto& [text, reason] : std::vector<std::pair<std::string, std::string>>{
           {"", "None"},
           {"its turn: job b is the next", "Priority"},
           {"2 nodes with 4 CPUs free: 1 is, and it is the next", "Resources"},
           {"1 node with 4 CPUs: n3 is drained", "ReqNodeNotAvail"}}) {
    job.set_waiting_for(text);
    EXPECT_EQ(One(job).reason, reason);
    EXPECT_EQ(One(job).reason_text, text);
  }
}

TEST(JobRecordTest, WhatTheServerSaysOfAJobThatWaits) {
  v1::JobStatus job = TestJob(1, "train-sh", v1::QUEUED);
  job.set_waiting_for("its turn: job b is the next");
  job.set_queue_reason("BeginTime");
  job.set_min_nodes(2);
  job.set_cpus(16);
  job.set_gpus(4);
  job.set_memory(uint64_t{8} << 30);
  job.set_workers(8);
  job.set_begins_until_unix_ms(absl::ToUnixMillis(TestNow() + absl::Hours(1)));
  job.set_batch_name("GPT_7B.v2");
  *job.mutable_placement()->add_nodes() = "n1";
  *job.mutable_placement()->add_nodes() = "n2";
  *job.mutable_placement()->add_labels() = "a100";
  *job.mutable_placement()->add_labels() = "r1|r2";
  job.mutable_queue()->add_dependencies()->set_kind(v1::Dependency::SINGLETON);
  const JobRecord record = One(job);
  EXPECT_EQ(record.reason, "BeginTime");
  EXPECT_EQ(record.node_count, 2u);
  EXPECT_EQ(record.cpus, 16u);
  EXPECT_EQ(record.gpus, 4u);
  EXPECT_EQ(record.memory, uint64_t{8} << 30);
  EXPECT_EQ(record.tasks, 8u);
  EXPECT_EQ(record.Start(), TestNow() + absl::Hours(1));
  EXPECT_EQ(record.name, "GPT_7B.v2");
  EXPECT_TRUE(record.batch && record.requeues);
  EXPECT_EQ(record.wanted_nodes, "n[1-2]");
  EXPECT_EQ(record.features, "a100&r1|r2");
  EXPECT_EQ(record.dependency, "singleton");
}

// Element `index` of the array 10.
v1::JobStatus Element(uint32_t index, v1::JobPhase phase) {
  v1::JobStatus job = TestJob(10 + index, absl::StrCat("a-", index), phase);
  job.set_array(10);
  job.set_array_index(index);
  job.set_array_at_once(2);
  return job;
}

TEST(JobRecordTest, ElementsOfAnArray) {
  v1::JobStatus step = TestJob(20, "python", v1::RUNNING);
  step.set_step_of(11);
  v1::JobStatus held = Element(7, v1::QUEUED);
  held.set_held(true);
  v1::JobStatus again = Element(8, v1::QUEUED);
  again.set_restarts(1);
  const auto records =
      RecordsOf({Element(0, v1::RUNNING), Element(1, v1::RUNNING), step, Element(2, v1::QUEUED),
                 Element(3, v1::QUEUED), Element(5, v1::QUEUED), held, again},
                {});
  const auto ids = [](const std::vector<JobRecord>& all) {
    std::vector<std::string> texts;
    for (const JobRecord& record : all) texts.push_back(record.Id());
    return texts;
  };
  EXPECT_THAT(ids(records),
              ElementsAre("10_0", "10_1", "10_1.0", "10_2", "10_3", "10_5", "10_7", "10_8"));
  EXPECT_EQ(records[2].RawId(), "11.0");
  EXPECT_THAT(ids(WithArraysCollapsed(records)),
              ElementsAre("10_0", "10_1", "10_1.0", "10_[2-3,5%2]", "10_7", "10_8"));
  JobSelection selection;
  const auto selected = [&](const std::string& id) {
    selection.ids = {id};
    std::vector<std::string> texts;
    for (const JobRecord& record : records) {
      if (selection.Selects(record)) texts.push_back(record.Id());
    }
    return texts;
  };
  // The array's id means all of its elements.
  EXPECT_EQ(selected("10").size(), 8u);
  EXPECT_THAT(selected("10_1"), ElementsAre("10_1", "10_1.0"));
  EXPECT_THAT(selected("11"), ElementsAre("10_1", "10_1.0"));
  EXPECT_THAT(selected("10_1.0"), ElementsAre("10_1.0"));
}

TEST(JobRecordTest, ExitCodes) {
  v1::JobStatus job = EndedTestJob(1, "a", v1::FAILED, v1::CRASH);
  job.mutable_verdict()->set_exit_status(3);
  job.mutable_verdict()->mutable_root_cause()->mutable_exit()->set_exit_code(3);
  EXPECT_EQ(One(job).exit_code, 3);
  EXPECT_EQ(One(job).reason, "NonZeroExitCode");
  job.mutable_verdict()->set_exit_status(137);
  job.mutable_verdict()->mutable_root_cause()->mutable_exit()->set_signal(9);
  EXPECT_EQ(One(job).exit_code, 0);
  EXPECT_EQ(One(job).exit_signal, 9);
}

TEST(JobRecordTest, NodesAndShares) {
  v1::ListNodesReply nodes;
  GiveTestNode("n2", "a", 4, &nodes);
  GiveTestNode("n1", "other", 1, &nodes);
  GiveTestNode("n1", "a", 4, &nodes);
  GiveTestNode("n3", "a", 4, &nodes);
  v1::JobStatus job = TestJob(1, "a", v1::RUNNING);
  JobRecord record = One(job, nodes);
  // In the order in which they were given.
  EXPECT_THAT(record.nodes, ElementsAre("n2", "n1", "n3"));
  EXPECT_EQ(record.node_count, 3u);
  EXPECT_EQ(record.tasks, 12u);
  EXPECT_EQ(record.cpus, 24u);
  job.add_allocated("n1");
  job.add_allocated("n2");
  EXPECT_THAT(One(job, nodes).nodes, ElementsAre("n1", "n2"));
  EXPECT_EQ(One(job, nodes).NodeList(), "n[1-2]");
}

TEST(JobRecordTest, NodesOfAJobThatHasEnded) {
  v1::JobStatus job = EndedTestJob(1, "a", v1::SUCCEEDED);
  job.set_world_size(2);
  for (const int rank : {1, 0, -1}) {
    v1::NodeStatus* node = job.add_nodes();
    node->set_name(absl::StrCat("n", rank + 5));
    node->set_node_rank(rank);
  }
  EXPECT_THAT(One(job).nodes, ElementsAre("n5", "n6"));
  EXPECT_EQ(One(job).tasks, 2u);
  EXPECT_EQ(One(job).cpus, 2u);
}

TEST(JobRecordTest, StepsFollowTheirBatchJob) {
  v1::JobStatus step = TestJob(5, "python", v1::RUNNING);
  step.set_step_of(3);
  step.set_step(1);
  v1::JobStatus first = TestJob(4, "python", v1::RUNNING);
  first.set_step_of(3);
  v1::JobStatus renamed = TestJob(6, "train-6", v1::RUNNING);
  renamed.set_submitted_name("train");
  v1::JobStatus of_cadre_run;
  of_cadre_run.set_name("brought");
  const auto records =
      RecordsOf({renamed, step, of_cadre_run, first, TestJob(3, "batch", v1::RUNNING)}, {});
  std::vector<std::string> ids;
  for (const JobRecord& record : records) ids.push_back(record.Id() + " " + record.name);
  EXPECT_THAT(ids, ElementsAre("3 batch", "3.0 python", "3.1 python", "6 train"));
  EXPECT_TRUE(records[0].has_steps);
  EXPECT_FALSE(records[3].has_steps);
  EXPECT_EQ(records[2].server_id, 5u);
}

TEST(JobRecordTest, Selections) {
  const JobRecord record = One(TestJob(7, "my-job", v1::RUNNING));
  JobSelection selection;
  EXPECT_TRUE(selection.Selects(record));
  selection.ids = {"6", "7"};
  selection.names = {"My_Job"};
  selection.users = {"ann"};
  selection.states = {"RUNNING"};
  selection.partitions = {"all"};
  EXPECT_TRUE(selection.Selects(record));
  selection.nodes = {"n1"};
  EXPECT_FALSE(selection.Selects(record));
  selection.nodes.clear();
  selection.users = {"bob"};
  EXPECT_FALSE(selection.Selects(record));
  JobRecord step = record;
  step.step = 2;
  JobSelection of_step;
  of_step.ids = {"7.2"};
  EXPECT_TRUE(of_step.Selects(step));
  EXPECT_FALSE(of_step.Selects(record));
}

TEST(JobRecordTest, Ids) {
  const auto texts = [](absl::string_view list) {
    const auto wanted = ParseWantedIds(list);
    std::vector<std::string> all;
    if (!wanted.ok()) return std::vector<std::string>{std::string(wanted.status().message())};
    for (const WantedId& id : *wanted) all.push_back(id.Text());
    return all;
  };
  EXPECT_THAT(texts("57"), ElementsAre("57"));
  EXPECT_THAT(texts("57.2,57.batch,"), ElementsAre("57.2", "57.batch"));
  EXPECT_THAT(texts("57_2,58_[1-2,7%3],57_2.0"),
              ElementsAre("57_2", "58_1", "58_2", "58_7", "57_2.0"));
  EXPECT_THAT(texts("57_*"), ElementsAre("57"));
  for (const char* const wrong :
       {"x", "0", "57.", "57.x", "57_", "57_x", "57_[1-", "57_1-2", "-1", "57_[0-1000]"}) {
    EXPECT_THAT(texts(wrong), ElementsAre(HasSubstr("Invalid job id specified"))) << wrong;
  }
  EXPECT_THAT(ParseWantedIds("57,x"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(JobRecordTest, NamesOfStates) {
  EXPECT_EQ(*ParseState("pd"), "PENDING");
  EXPECT_EQ(*ParseState("Running"), "RUNNING");
  EXPECT_EQ(CompactState("COMPLETED"), "CD");
  EXPECT_THAT(ParseState("RUNING"), StatusIs(absl::StatusCode::kInvalidArgument,
                                             "Invalid job state specified: RUNING; did you mean "
                                             "RUNNING?"));
}

TEST(JobRecordTest, Times) {
  EXPECT_EQ(ShortTime(absl::Seconds(5)), "0:05");
  EXPECT_EQ(ShortTime(absl::Minutes(90)), "1:30:00");
  EXPECT_EQ(ShortTime(absl::Hours(49)), "2-01:00:00");
  EXPECT_EQ(LongTime(absl::Seconds(5)), "00:00:05");
  EXPECT_EQ(LongTime(absl::InfiniteDuration()), "UNLIMITED");
  EXPECT_EQ(TimeText(TestNow(), absl::UTCTimeZone(), "", "N/A"), "2026-11-29T12:00:00");
  EXPECT_EQ(TimeText(TestNow(), absl::UTCTimeZone(), "%s", "N/A"), "1795953600");
  EXPECT_EQ(TimeText(absl::InfinitePast(), absl::UTCTimeZone(), "", "N/A"), "N/A");
  const JobRecord record = One(TestJob(7, "a", v1::RUNNING));
  EXPECT_EQ(record.Elapsed(TestNow()), absl::Minutes(30));
}

}  // namespace
}  // namespace cadre::launcher
