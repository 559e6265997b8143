// Tests which jobs the words of a command line name.
#include "launcher/commands/change_jobs.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;

v1::JobStatus Job(uint64_t id, v1::JobPhase phase) {
  v1::JobStatus job;
  job.set_name(absl::StrCat("train-", id));
  job.set_submission(id);
  job.set_phase(phase);
  return job;
}

TEST(SingleJobsTest, AnArrayIsItsElementsThatHaveNotEnded) {
  std::vector<v1::JobStatus> jobs = {Job(7, v1::RUNNING)};
  for (uint32_t index = 0; index < 4; ++index) {
    v1::JobStatus job = Job(12 + index, index == 0 ? v1::SUCCEEDED : v1::QUEUED);
    job.set_array(12);
    job.set_array_index(index);
    if (index == 0) job.mutable_verdict()->set_outcome(v1::SUCCEEDED);
    jobs.push_back(job);
  }
  EXPECT_THAT(SingleJobs({"12"}, jobs), ElementsAre("13", "14", "15"));
  EXPECT_THAT(SingleJobs({"12_2"}, jobs), ElementsAre("14"));
  EXPECT_THAT(SingleJobs({"12_[1,3]", "13"}, jobs), ElementsAre("13", "15"));
  EXPECT_THAT(SingleJobs({"7", "mnist", "train-7"}, jobs), ElementsAre("7", "mnist", "train-7"));
  // The server says why not.
  EXPECT_THAT(SingleJobs({"12_0", "99"}, jobs), ElementsAre("12_0", "99"));
}

}  // namespace
}  // namespace cadre::launcher
