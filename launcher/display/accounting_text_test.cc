#include "launcher/display/accounting_text.h"

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kHourUs = 3600000000;

TEST(HistoryTable, ShowsAJobInALine) {
  v1::HistoryReply history;
  v1::AccountedJob* job = history.add_jobs();
  job->set_id(57);
  job->set_name("train");
  job->set_user("alice");
  job->set_phase(v1::FAILED);
  job->set_cause(v1::OUT_OF_MEMORY);
  job->set_submitted_unix_ms(1000);
  job->set_began_unix_ms(61000);
  job->set_ended_unix_ms(151000);
  job->set_nodes("n[1-2]");
  job->set_gpus(16);
  EXPECT_EQ(HistoryTable(history, absl::UTCTimeZone()),
            "ID  NAME   USER   STATE   SUBMITTED            BEGAN                ELAPSED  NODES   "
            "GPUS  CAUSE\n"
            "57  train  alice  failed  1970-01-01 00:00:01  1970-01-01 00:01:01  1m30s    n[1-2]  "
            "16    out_of_memory\n");
}

TEST(HistoryTable, LeavesOutWhatIsNotKnown) {
  v1::HistoryReply history;
  history.add_jobs()->set_phase(v1::SUCCEEDED);
  EXPECT_THAT(HistoryTable(history, absl::UTCTimeZone()), Not(HasSubstr("1970")));
}

TEST(IdText, IsThatOfTheElementOrTheStep) {
  v1::AccountedJob job;
  EXPECT_EQ(IdText(job), "-");
  job.set_id(60);
  EXPECT_EQ(IdText(job), "60");
  job.set_array(57);
  job.set_array_index(3);
  EXPECT_EQ(IdText(job), "57_3");
  job.set_step_of(59);
  job.set_step(2);
  EXPECT_EQ(IdText(job), "59.2");
}

v1::UsageReply Usage(bool gpus) {
  v1::UsageReply usage;
  v1::UsageSum* sum = usage.add_sums();
  sum->set_key("alice");
  sum->set_jobs(3);
  sum->set_failed(1);
  sum->set_failures(2);
  sum->set_cpu_us(100 * kHourUs);
  sum->set_lost_cpu_us(5 * kHourUs);
  sum->set_wasted_cpu_us(20 * kHourUs);
  if (gpus) {
    sum->set_gpu_us(50 * kHourUs);
    sum->set_lost_gpu_us(kHourUs / 2);
    sum->set_wasted_gpu_us(10 * kHourUs);
  }
  *usage.mutable_total() = *sum;
  return usage;
}

TEST(UsageTable, ShowsGpuHours) {
  EXPECT_EQ(UsageTable(Usage(true), v1::UsageRequest::USER),
            "USER   JOBS  FAILED  GPU-HOURS  LOST  WASTED  CPU-HOURS\n"
            "alice  3     1       50.0       0.50  10.0    100.0\n"
            "total  3     1       50.0       0.50  10.0    100.0\n");
}

TEST(UsageTable, ShowsCpuHoursIfNoJobHadAGpu) {
  EXPECT_EQ(UsageTable(Usage(false), v1::UsageRequest::USER),
            "USER   JOBS  FAILED  CPU-HOURS LOST  WASTED  CPU-HOURS\n"
            "alice  3     1       5.00            20.0    100.0\n"
            "total  3     1       5.00            20.0    100.0\n");
}

TEST(UsageTable, ShowsCauses) {
  v1::UsageReply usage = Usage(true);
  usage.mutable_sums(0)->set_key("node_lost");
  EXPECT_EQ(UsageTable(usage, v1::UsageRequest::CAUSE),
            "CAUSE      RECOVERED  FAILED JOBS  GPU-HOURS LOST  WASTED\n"
            "node_lost  2          1            0.50            10.0\n"
            "total      2          1            0.50            10.0\n");
}

TEST(UsageTable, NamesTheAdministratorsJobs) {
  v1::UsageReply usage = Usage(true);
  usage.mutable_sums(0)->clear_key();
  EXPECT_THAT(UsageTable(usage, v1::UsageRequest::USER), HasSubstr("(administrator)"));
}

TEST(ParseGrouping, RefusesOtherWords) {
  EXPECT_EQ(*ParseGrouping("day"), v1::UsageRequest::DAY);
  EXPECT_THAT(std::string(ParseGrouping("month").status().message()),
              HasSubstr("expected user, node, cause or day"));
}

}  // namespace
}  // namespace cadre::launcher
