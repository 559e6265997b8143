#include "launcher/slurm/accounted_job.h"

#include <cstdint>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/slurm/job_record.h"
#include "proto/control.pb.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

v1::AccountedJob Accounted(uint64_t id) {
  v1::AccountedJob job;
  job.set_id(id);
  job.set_name("train");
  job.set_user("alice");
  job.set_phase(v1::FAILED);
  job.set_cause(v1::NODE_LOST);
  job.set_exit_status(1);
  job.set_submitted_unix_ms(1000);
  job.set_began_unix_ms(2000);
  job.set_ended_unix_ms(62000);
  job.set_nodes("n[1-2]");
  job.set_node_count(2);
  job.set_workers(4);
  job.set_cpus(8);
  return job;
}

TEST(AccountedJob, IsShownAsAJobOfTheServerIs) {
  std::vector<v1::JobStatus> jobs;
  AddAccounted({Accounted(7)}, &jobs);
  const std::vector<JobRecord> records = RecordsOf(jobs, v1::ListNodesReply());
  ASSERT_THAT(records, SizeIs(1));
  EXPECT_EQ(records[0].Id(), "7");
  EXPECT_EQ(records[0].name, "train");
  EXPECT_EQ(records[0].user, "alice");
  EXPECT_EQ(records[0].state, "NODE_FAIL");
  EXPECT_THAT(records[0].nodes, ElementsAre("n1", "n2"));
  EXPECT_EQ(records[0].cpus, 8u);
  EXPECT_EQ(records[0].tasks, 4u);
  EXPECT_EQ(records[0].Elapsed(absl::Now()), absl::Seconds(60));
}

TEST(AccountedJob, WhatTheServerStillKnowsWins) {
  v1::JobStatus known;
  known.set_submission(7);
  known.set_name("known");
  std::vector<v1::JobStatus> jobs = {known};
  AddAccounted({Accounted(7), Accounted(8), Accounted(8), Accounted(0)}, &jobs);
  ASSERT_THAT(jobs, SizeIs(2));
  EXPECT_EQ(jobs[0].name(), "known");
  EXPECT_EQ(jobs[1].submission(), 8u);
}

TEST(AccountedJob, IdsThatTheServerHasAreNotAskedForAgain) {
  v1::JobStatus job, element;
  job.set_submission(7);
  element.set_submission(9);
  element.set_array(9);
  EXPECT_THAT(IdsIn({"7.2", "9_3", "11", "x"}), ElementsAre(7, 9, 11));
  EXPECT_THAT(UnknownIds({7, 9, 11}, {job, element}), ElementsAre(9, 11));
}

}  // namespace
}  // namespace cadre::launcher
