#include "launcher/commands/job_filter.h"

#include <string>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"

namespace cadre::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

absl::StatusOr<JobFilter> Read(const std::string& flag, const std::string& value) {
  Parsed parsed;
  parsed.flags[flag] = {value};
  return ReadJobFilter(parsed, [] { return std::string("ann"); });
}

v1::JobStatus Job(v1::JobPhase phase) {
  v1::JobStatus job;
  job.set_phase(phase);
  return job;
}

TEST(JobFilterTest, WithoutFlagsItIsEverything) {
  const auto filter = ReadJobFilter({}, [] { return absl::InternalError("not to be called"); });
  ASSERT_OK(filter);
  EXPECT_TRUE(filter->IsEmpty());
  EXPECT_TRUE(filter->Selects(Job(v1::FAILED)));
}

TEST(JobFilterTest, UsersAreThoseWhoSubmittedOrBeganTheJob) {
  v1::JobStatus job = Job(v1::RUNNING);
  const auto mine = Read("me", "1"), some = Read("user", "bob, cy");
  ASSERT_OK(mine);
  ASSERT_OK(some);
  // An administrator's; or, of a launcher of one's own, one's own.
  EXPECT_FALSE(mine->Selects(job));
  EXPECT_TRUE(mine->SelectsOwn(job));
  EXPECT_FALSE(some->SelectsOwn(job));
  job.set_started_by("cy");
  EXPECT_TRUE(some->Selects(job));
  job.set_user("ann");
  EXPECT_FALSE(some->Selects(job));
  EXPECT_TRUE(mine->Selects(job));
}

TEST(JobFilterTest, MeIsOneMoreUser) {
  Parsed parsed;
  parsed.flags["me"] = {"1"};
  parsed.flags["user"] = {"bob"};
  const auto filter = ReadJobFilter(parsed, [] { return std::string("ann"); });
  ASSERT_OK(filter);
  EXPECT_THAT(filter->users, testing::ElementsAre("ann", "bob"));
  const auto nobody =
      ReadJobFilter(parsed, [] { return absl::NotFoundError("this machine has no user 7"); });
  EXPECT_EQ(nobody.status().message(), "--me: this machine has no user 7; name one with --user");
}

TEST(JobFilterTest, StatesHaveOurNamesAndSlurms) {
  const auto selects = [](const std::string& states, v1::JobPhase phase) {
    const auto filter = Read("state", states);
    return filter.ok() && filter->Selects(Job(phase));
  };
  EXPECT_TRUE(selects("pending", v1::QUEUED));
  EXPECT_TRUE(selects("queued,RUNNING", v1::RUNNING));
  EXPECT_FALSE(selects("queued,running", v1::STOPPING));
  EXPECT_TRUE(selects("completed", v1::SUCCEEDED));
  EXPECT_TRUE(selects("cancelled", v1::CANCELLED_PHASE));
  EXPECT_TRUE(selects("live", v1::GATHERING));
  EXPECT_FALSE(selects("live", v1::FAILED));
  EXPECT_TRUE(selects("ended", v1::FAILED));
  // Of a run that left no verdict it is not known.
  EXPECT_FALSE(selects("live,ended", v1::JOB_PHASE_UNSPECIFIED));
}

TEST(JobFilterTest, AnUnknownStateIsAnswered) {
  EXPECT_THAT(std::string(Read("state", "running,fialed").status().message()),
              AllOf(HasSubstr("--state: 'fialed' is no state; did you mean 'failed'? The states "),
                    HasSubstr(" queued (or pending), gathering, ")));
  EXPECT_THAT(std::string(Read("state", "zzzzzz").status().message()),
              AllOf(HasSubstr("; the states are queued"), Not(HasSubstr("did you mean"))));
}

TEST(JobFilterTest, AListHasAnItem) {
  for (const std::string flag : {"user", "state", "node"}) {
    EXPECT_THAT(std::string(Read(flag, " ,").status().message()),
                HasSubstr("--" + flag + ": expected one or more"));
  }
}

TEST(JobFilterTest, EachKindHasToFit) {
  Parsed parsed;
  parsed.flags["node"] = {"n1,n2"};
  parsed.flags["state"] = {"running"};
  const auto filter = ReadJobFilter(parsed, [] { return std::string("ann"); });
  ASSERT_OK(filter);
  v1::JobStatus job = Job(v1::RUNNING);
  job.add_nodes()->set_name("n0");
  EXPECT_FALSE(filter->Selects(job));
  job.add_nodes()->set_name("n2");
  EXPECT_TRUE(filter->Selects(job));
  job.set_phase(v1::STOPPING);
  EXPECT_FALSE(filter->Selects(job));
}

}  // namespace
}  // namespace cadre::launcher
