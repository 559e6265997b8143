// Tests sacct's options and its table, whose fields are those of Slurm 23.02.
#include "launcher/slurm/sacct_text.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/slurm/job_record_for_test.h"
#include "launcher/spec/queue_values.h"
#include "nlohmann/json.hpp"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

// A batch job with a step, one that failed yesterday, and one that waits.
std::vector<JobRecord> Jobs() {
  v1::ListNodesReply nodes;
  GiveTestNode("n1", "train", 4, &nodes);
  GiveTestNode("n2", "train", 4, &nodes);
  GiveTestNode("n1", "python", 4, &nodes);
  v1::JobStatus train = TestJob(57, "train", v1::STOPPING);
  train.set_limit_us(absl::ToInt64Microseconds(absl::Hours(26)));
  v1::JobStatus step = TestJob(58, "python", v1::RUNNING);
  step.set_step_of(57);
  v1::JobStatus failed = EndedTestJob(56, "a-long-job-name", v1::FAILED, v1::CRASH);
  failed.mutable_verdict()->set_exit_status(3);
  failed.set_world_size(2);
  failed.set_ended_unix_ms(absl::ToUnixMillis(TestNow() - absl::Hours(20)));
  failed.set_began_unix_ms(absl::ToUnixMillis(TestNow() - absl::Hours(21)));
  failed.set_submitted_unix_ms(absl::ToUnixMillis(TestNow() - absl::Hours(21)));
  v1::JobStatus of_bob = TestJob(59, "waits", v1::QUEUED);
  of_bob.set_user("bob");
  return RecordsOf({train, step, failed, of_bob}, nodes);
}

std::string Text(const std::vector<std::string>& arguments,
                 const std::map<std::string, std::string>& environment = {}) {
  auto options = ReadSacct(arguments, environment, TestNow(), absl::UTCTimeZone());
  if (!options.ok()) return std::string(options.status().message());
  options->selection.users.insert(options->users.begin(), options->users.end());
  const auto text =
      SacctText(ChooseForSacct(Jobs(), *options, TestNow()), *options, TestSurroundings());
  return text.ok() ? *text : std::string(text.status().message());
}

TEST(SacctTextTest, UsualFields) {
  EXPECT_EQ(Text({"-j", "57"}),
            "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode \n"
            "------------ ---------- ---------- ---------- ---------- ---------- -------- \n"
            "57                train        all                    16    RUNNING      0:0 \n"
            "57.batch          batch                               16    RUNNING      0:0 \n"
            "57.0             python                                8    RUNNING      0:0 \n");
}

// What submitit and NeMo-Run ask.
TEST(SacctTextTest, ForPrograms) {
  EXPECT_EQ(Text({"-o", "JobID,State,NodeList", "--parsable2", "-j", "57", "-j", "56"}),
            "JobID|State|NodeList\n"
            "56|FAILED|None assigned\n"
            "57|RUNNING|n[1-2]\n"
            "57.batch|RUNNING|n1\n"
            "57.0|RUNNING|n1\n");
  EXPECT_EQ(Text({"-j", "56", "--format=State", "--noheader", "--parsable2"}), "FAILED\n");
  EXPECT_EQ(Text({"-Xnp", "-j57", "-oJobID,State"}), "57|RUNNING|\n");
  EXPECT_EQ(Text({"-j", "57_3", "-nP"}), "");
}

// As submitit and NeMo-Run read it.
TEST(SacctTextTest, Arrays) {
  std::vector<v1::JobStatus> jobs;
  for (uint32_t index = 0; index < 4; ++index) {
    v1::JobStatus job =
        TestJob(12 + index, absl::StrCat("sweep-", index), index == 0 ? v1::RUNNING : v1::QUEUED);
    job.set_array(12);
    job.set_array_index(index);
    job.set_batch_name("sweep");
    if (index == 0) job.add_allocated("n1");
    jobs.push_back(job);
  }
  const auto text = [&](const std::vector<std::string>& arguments) {
    const auto options = ReadSacct(arguments, {}, TestNow(), absl::UTCTimeZone());
    EXPECT_OK(options);
    const auto shown = SacctText(ChooseForSacct(RecordsOf(jobs, {}), *options, TestNow()), *options,
                                 TestSurroundings());
    EXPECT_OK(shown);
    return *shown;
  };
  EXPECT_EQ(text({"-oJobID,State,NodeList", "-nP", "-j12"}),
            "12_0|RUNNING|n1\n12_0.batch|RUNNING|n1\n12_[1-3]|PENDING|None assigned\n");
  EXPECT_EQ(text({"-oJobID,JobIDRaw,JobName", "-nPX", "-j12_0,12_2"}),
            "12_0|12|sweep\n12_2|14|sweep\n");
  EXPECT_EQ(text({"-oJobID", "-nPX", "--array", "-j12"}), "12_0\n12_1\n12_2\n12_3\n");
}

TEST(SacctTextTest, Selections) {
  EXPECT_EQ(Text({"-nPXa", "-oJobID"}), "57\n59\n");
  EXPECT_EQ(Text({"-nPX", "-uann", "-oJobID"}), "57\n");
  EXPECT_EQ(Text({"-nPXa", "-oJobID", "-S", "now-1day"}), "56\n57\n59\n");
  EXPECT_EQ(Text({"-nPXa", "-oJobID", "-S", "2026-11-28", "-E", "2026-11-29"}), "56\n");
  EXPECT_EQ(Text({"-nPXa", "-oJobID", "-s", "PD,F"}), "59\n");
  EXPECT_EQ(Text({"-nP", "-oJobID", "-j", "57.0"}), "57.0\n");
  EXPECT_EQ(Text({"-nPX", "-oJobID", "-j57,59"}), "57\n59\n");
  EXPECT_THAT(Text({"-j", "x"}), HasSubstr("fatal: Bad job/step specified: x"));
  EXPECT_THAT(Text({"-A", "a"}), HasSubstr("error: -A: not yet"));
}

TEST(SacctTextTest, Fields) {
  EXPECT_EQ(Text({"-nPX", "-j57", "-oElapsed,Timelimit,TimelimitRaw,Start,End,AllocTRES,User,UID"}),
            "00:30:00|1-02:00:00|1560|2026-11-29T11:30:00|Unknown|cpu=16,node=2|ann|1000\n");
  EXPECT_EQ(Text({"-nPX", "-j56", "-oExitCode,Elapsed,NTasks,MaxRSS,CPUTime"}),
            "3:0|01:00:00|||02:00:00\n");
  EXPECT_EQ(Text({"-nPX", "-j57"}, {{"SACCT_FORMAT", "jobname"}}), "train\n");
  // Cut with a '+', or as wide as the user says.
  EXPECT_EQ(Text({"-nX", "-j56", "-oJobName"}), "a-long-jo+ \n");
  EXPECT_EQ(Text({"-nX", "-j56", "-oJobName%-18"}), "a-long-job-name    \n");
  EXPECT_THAT(Text({"-oJobNam,Stte"}),
              HasSubstr("Invalid field requested: \"Stte\"; did you mean"));
}

TEST(SacctTextTest, Json) {
  const nlohmann::json json = nlohmann::json::parse(Text({"--json", "-j57"}));
  ASSERT_EQ(json["jobs"].size(), 1u);
  const nlohmann::json& job = json["jobs"][0];
  EXPECT_EQ(job["job_id"], 57);
  EXPECT_EQ(job["state"]["current"][0], "RUNNING");
  EXPECT_EQ(job["steps"].size(), 2u);
  EXPECT_EQ(job["steps"][1]["step"]["id"], "57.0");
}

TEST(SacctTextTest, Dates) {
  const auto date = [](absl::string_view text) {
    const auto time = ParseSlurmDate(text, TestNow(), absl::UTCTimeZone());
    return time.ok() ? TimeText(*time, absl::UTCTimeZone(), "", "")
                     : std::string(time.status().message());
  };
  EXPECT_EQ(date("2026-11-28"), "2026-11-28T00:00:00");
  EXPECT_EQ(date("2026-11-28T07:30"), "2026-11-28T07:30:00");
  EXPECT_EQ(date("07:30:15"), "2026-11-29T07:30:15");
  EXPECT_EQ(date("11/28"), "2026-11-28T00:00:00");
  EXPECT_EQ(date("1128"), "2026-11-28T00:00:00");
  EXPECT_EQ(date("11/28/25-07:30"), "2025-11-28T07:30:00");
  EXPECT_EQ(date("today"), "2026-11-29T00:00:00");
  EXPECT_EQ(date("now-90minutes"), "2026-11-29T10:30:00");
  EXPECT_EQ(date("now-1days"), "2026-11-28T12:00:00");
  EXPECT_THAT(date("tomorow"), HasSubstr("expected a time, as 2026-11-29"));
  EXPECT_THAT(date("now-1x"), HasSubstr("now-2hours"));
}

}  // namespace
}  // namespace cadre::launcher
