// Tests squeue's options and its table, whose columns are those of Slurm 23.02.
#include "launcher/slurm/squeue_text.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/slurm/job_record_for_test.h"
#include "nlohmann/json.hpp"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// A job that runs, with a step; one that waits; and one that has ended.
std::vector<JobRecord> Jobs() {
  v1::ListNodesReply nodes;
  GiveTestNode("n1", "train", 4, &nodes);
  GiveTestNode("n2", "train", 4, &nodes);
  GiveTestNode("n1", "python", 1, &nodes);
  v1::JobStatus train = TestJob(57, "train", v1::RUNNING);
  train.set_limit_us(absl::ToInt64Microseconds(absl::Hours(2)));
  v1::JobStatus step = TestJob(58, "python", v1::RUNNING);
  step.set_step_of(57);
  v1::JobStatus waits = TestJob(59, "a-long-name", v1::QUEUED);
  waits.set_waiting_for("2 nodes with 4 CPUs free: 1 is, and it is the next");
  return RecordsOf({train, step, waits, EndedTestJob(56, "old", v1::SUCCEEDED)}, nodes);
}

std::string Text(const std::vector<std::string>& arguments,
                 const std::map<std::string, std::string>& environment = {}) {
  const auto options = ReadSqueue(arguments, environment);
  if (!options.ok()) return std::string(options.status().message());
  const auto text = SqueueText(Jobs(), *options, TestSurroundings());
  return text.ok() ? *text : std::string(text.status().message());
}

TEST(SqueueTextTest, UsualColumns) {
  EXPECT_EQ(Text({}),
            "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
            "                59       all a-long-n      ann PD       0:00      1 (Resources)\n"
            "                57       all    train      ann  R      30:00      2 n[1-2]\n");
}

TEST(SqueueTextTest, LongColumns) {
  EXPECT_EQ(Text({"-l", "-j57"}),
            "Sun Nov 29 12:00:00 2026\n"
            "             JOBID PARTITION     NAME     USER    STATE       TIME TIME_LIMI  NODES "
            "NODELIST(REASON)\n"
            "                57       all    train      ann  RUNNING      30:00   2:00:00      2 "
            "n[1-2]\n");
}

TEST(SqueueTextTest, FormatsByLetter) {
  EXPECT_EQ(Text({"-h", "-o", "%i|%S|%T"}), "59|N/A|PENDING\n57|2026-11-29T11:30:00|RUNNING\n");
  EXPECT_EQ(Text({"--noheader", "--format=%.5A %-"}), "error: Invalid job format specification: -");
  EXPECT_EQ(Text({"-h", "-j", "57", "-o", "%.5i<%5t>%L %C %U %N"}),
            "   57<R    >1:30:00 16 1000 n[1-2]\n");
  EXPECT_EQ(Text({"-j57", "-o", "id=%A"}), "id=JOBID\nid=57\n");
  EXPECT_EQ(Text({"-h", "-j57"}, {{"SQUEUE_FORMAT", "%j"}}), "train\n");
}

TEST(SqueueTextTest, FormatsByName) {
  EXPECT_EQ(Text({"-h", "-j57", "-O", "JobID:5,State:.10,NodeList:0"}), "57      RUNNINGn[1-2]\n");
  EXPECT_EQ(Text({"-h", "-j57", "-O", "UserName,NumNodes"}),
            "ann                 2                   \n");
  EXPECT_THAT(Text({"-O", "NodLists"}), HasSubstr("did you mean nodelist?"));
  EXPECT_THAT(Text({"-O", "JobID", "-o", "%i"}), HasSubstr("is incompatible with"));
}

TEST(SqueueTextTest, Selections) {
  EXPECT_EQ(Text({"-h", "-o%i", "-t", "all"}), "59\n57\n56\n");
  EXPECT_EQ(Text({"-h", "-o%i", "-tPD,completed"}), "59\n56\n");
  EXPECT_EQ(Text({"-h", "-o%i", "-n", "A_long_name"}), "59\n");
  EXPECT_EQ(Text({"-h", "-o%i", "-w", "n2"}), "57\n");
  EXPECT_EQ(Text({"-h", "-o%i", "--start"}), "59\n");
  EXPECT_EQ(Text({"-h", "-o%i", "-p", "gpu"}), "");
  EXPECT_EQ(Text({"-h", "-o%i %T", "-j", "56"}), "");
  EXPECT_THAT(Text({"-t", "RUNING"}), HasSubstr("error: Invalid job state specified: RUNING"));
  EXPECT_THAT(Text({"-j", "x"}), HasSubstr("Invalid job id specified: x"));
  EXPECT_THAT(Text({"57"}), HasSubstr("Unrecognized option: 57"));
}

// An array of five elements, of which one runs.
std::string ArrayText(const std::vector<std::string>& arguments) {
  std::vector<v1::JobStatus> jobs;
  for (uint32_t index = 0; index < 5; ++index) {
    v1::JobStatus job =
        TestJob(12 + index, absl::StrCat("sweep-", index), index == 0 ? v1::RUNNING : v1::QUEUED);
    job.set_submitted_name("sweep");
    job.set_array(12);
    job.set_array_index(index);
    job.set_array_at_once(2);
    job.set_min_nodes(2);
    job.set_cpus(8);
    if (index > 0) {
      job.set_queue_reason(index == 1 ? "Priority" : "JobArrayTaskLimit");
      job.set_begins_until_unix_ms(absl::ToUnixMillis(TestNow() + absl::Hours(2)));
    }
    jobs.push_back(job);
  }
  const auto options = ReadSqueue(arguments, {});
  if (!options.ok()) return std::string(options.status().message());
  const auto text = SqueueText(RecordsOf(jobs, {}), *options, TestSurroundings());
  return text.ok() ? *text : std::string(text.status().message());
}

TEST(SqueueTextTest, ElementsOfAnArrayThatWaitAreOneLine) {
  EXPECT_EQ(ArrayText({}),
            "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
            "        12_[1-4%2]       all    sweep      ann PD       0:00      2 (Priority)\n"
            "              12_0       all    sweep      ann  R      30:00      2 \n");
  EXPECT_EQ(ArrayText({"-h", "-r", "-o%i %A %F %K %r"}),
            "12_1 13 12 1 Priority\n12_2 14 12 2 JobArrayTaskLimit\n"
            "12_3 15 12 3 JobArrayTaskLimit\n12_4 16 12 4 JobArrayTaskLimit\n"
            "12_0 12 12 0 None\n");
  EXPECT_EQ(ArrayText({"-h", "-j", "12_3", "-o%i %C %D"}), "12_3 8 2\n");
  EXPECT_EQ(ArrayText({"-h", "-j12_[1-2]", "-o%i %K"}), "12_[1-2%2] 1-2%2\n");
}

TEST(SqueueTextTest, ExpectedStarts) {
  EXPECT_EQ(ArrayText({"-h", "--start", "-o%i|%S|%T"}), "12_[1-4%2]|2026-11-29T14:00:00|PENDING\n");
}

TEST(SqueueTextTest, Steps) {
  EXPECT_EQ(Text({"-s"}),
            "         STEPID     NAME PARTITION     USER      TIME NODELIST\n"
            "           57.0   python       all      ann     30:00 n1\n");
}

TEST(SqueueTextTest, Order) {
  EXPECT_EQ(Text({"-h", "-o%i", "-S", "i"}), "57\n59\n");
  EXPECT_EQ(Text({"-h", "-o%i", "-S", "-i"}), "59\n57\n");
  EXPECT_EQ(Text({"-h", "-o%i", "-S", "j"}), "59\n57\n");
}

TEST(SqueueTextTest, Json) {
  const nlohmann::json json = nlohmann::json::parse(Text({"--json"}));
  ASSERT_EQ(json["jobs"].size(), 2u);
  EXPECT_EQ(json["jobs"][1]["job_id"], 57);
  EXPECT_EQ(json["jobs"][1]["job_state"], "RUNNING");
  EXPECT_EQ(json["jobs"][1]["name"], "train");
  EXPECT_EQ(json["jobs"][1]["user_name"], "ann");
  EXPECT_EQ(json["jobs"][1]["nodes"], "n[1-2]");
  EXPECT_EQ(json["jobs"][1]["time_limit"], 120);
}

TEST(SqueueTextTest, Users) {
  const auto options = ReadSqueue({"-u", "ann,1001", "--me"}, {{"SQUEUE_USERS", "bob"}});
  ASSERT_OK(options);
  EXPECT_THAT(options->users, ::testing::ElementsAre("ann", "1001"));
  EXPECT_TRUE(options->me);
  EXPECT_THAT(ReadSqueue({"-l", "-o", "%i"}, {}), StatusIs(kInvalid, HasSubstr("fatal: ")));
}

}  // namespace
}  // namespace cadre::launcher
