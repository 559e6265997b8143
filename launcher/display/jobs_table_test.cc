#include "launcher/display/jobs_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

v1::JobStatus Running() {
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

TEST(JobsTableTest, ALineForEachJob) {
  EXPECT_THAT(JobsTable({Running()}),
              ContainsRegex("mnist +- +running +2 +1 +3/4 +1/5 +- +1 worker to start\n"));
  v1::JobStatus still = Running();
  still.clear_waiting_for();
  still.set_stall("rank 1 at hang.py:7");
  EXPECT_THAT(JobsTable({still}), HasSubstr("  rank 1 at hang.py:7\n"));
  v1::JobStatus stopping = Running();
  stopping.set_stop_reason("rank 1 exited with status 3");
  EXPECT_THAT(JobsTable({stopping}), HasSubstr("  rank 1 exited with status 3\n"));
}

TEST(JobsTableTest, AnEndedJobHadWorkersAndRunsNone) {
  v1::JobStatus ended = Running();
  ended.set_phase(v1::FAILED);
  ended.set_workers_running(0);
  ended.mutable_verdict()->set_message("no luck");
  EXPECT_THAT(JobsTable({ended}), ContainsRegex("mnist +- +failed +2 +1 +4 +1/5 +- +no luck\n"));
  ended.clear_nodes();
  ended.set_nodes_in(16);
  EXPECT_THAT(JobsTable({ended}), ContainsRegex("mnist +- +failed +2 +16 +4 +1/5"));
  ended.set_nodes_in(1);
  ended.set_world_size(0);
  EXPECT_THAT(JobsTable({ended}), ContainsRegex("mnist +- +failed +2 +1 +- +1/5"));
}

TEST(JobsTableTest, ItsUserIsWhoSubmittedItOrWhoseTokenBeganIt) {
  v1::JobStatus job = Running();
  job.set_started_by("ann");
  EXPECT_THAT(JobsTable({job}), ContainsRegex("mnist +ann +running"));
  job.set_user("ben");
  EXPECT_THAT(JobsTable({job}), ContainsRegex("mnist +ben +running"));
}

TEST(JobsTableTest, ALongReasonIsShortenedToItsBeginning) {
  v1::JobStatus ended = Running();
  ended.mutable_verdict()->set_message("first cause\n" + std::string(3000, '-') + " last");
  const std::string table = JobsTable({ended});
  EXPECT_THAT(table, HasSubstr("  first cause\\n---"));
  EXPECT_THAT(table, HasSubstr("---...\n"));
  EXPECT_THAT(table, Not(HasSubstr("last")));
  EXPECT_LT(table.size(), 400u);
}

}  // namespace
}  // namespace cadre::launcher
