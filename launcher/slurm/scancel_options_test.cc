// Tests which jobs scancel selects.
#include "launcher/slurm/scancel_options.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/slurm/job_record_for_test.h"

namespace cadre::launcher {
namespace {

using ::testing::HasSubstr;

std::vector<JobRecord> Jobs() {
  v1::ListNodesReply nodes;
  GiveTestNode("n1", "train", 4, &nodes);
  v1::JobStatus step = TestJob(58, "python", v1::RUNNING);
  step.set_step_of(57);
  v1::JobStatus of_bob = TestJob(60, "train-60", v1::QUEUED);
  of_bob.set_submitted_name("train");
  of_bob.set_user("bob");
  return RecordsOf({TestJob(57, "train", v1::RUNNING), step, TestJob(59, "waits", v1::QUEUED),
                    of_bob, EndedTestJob(56, "old", v1::SUCCEEDED)},
                   nodes);
}

// The server's ids of those that are cancelled, then the errors.
std::string Chosen(const std::vector<std::string>& arguments) {
  auto options = ReadScancel(arguments);
  if (!options.ok()) return std::string(options.status().message());
  options->selection.users.insert(options->users.begin(), options->users.end());
  const ToCancel chosen = ChooseToCancel(Jobs(), *options);
  std::vector<std::string> texts;
  for (const JobRecord& record : chosen.records) {
    texts.push_back(absl::StrCat(record.server_id));
  }
  texts.insert(texts.end(), chosen.errors.begin(), chosen.errors.end());
  return absl::StrJoin(texts, " ");
}

TEST(ScancelOptionsTest, ById) {
  // Those that wait come first.
  EXPECT_EQ(Chosen({"57", "59", "57"}), "59 57");
  EXPECT_EQ(Chosen({"57.0"}), "58");
  EXPECT_EQ(Chosen({"57.batch"}), "57");
  EXPECT_EQ(Chosen({"56"}), "");
  EXPECT_EQ(Chosen({"7"}), "Kill job error on job id 7: Invalid job id specified");
  EXPECT_EQ(Chosen({"57.3"}), "Kill job error on job step id 57.3: Invalid job id specified");
  EXPECT_EQ(Chosen({"train"}), "error: Invalid job id train");
}

TEST(ScancelOptionsTest, ByFilter) {
  EXPECT_EQ(Chosen({"-n", "train"}), "60 57");
  EXPECT_EQ(Chosen({"-n", "train", "-u", "ann"}), "57");
  EXPECT_EQ(Chosen({"-tPD"}), "59 60");
  EXPECT_EQ(Chosen({"-w", "n[1-2]"}), "57");
  EXPECT_EQ(Chosen({"-n", "train", "59"}), "");
}

TEST(ScancelOptionsTest, Signals) {
  const auto signal = [](const std::vector<std::string>& arguments) {
    const auto options = ReadScancel(arguments);
    EXPECT_OK(options);
    return absl::StrCat(options->signal, options->Cancels() ? " cancels" : "",
                        options->to_script ? " script" : "", options->to_all ? " all" : "");
  };
  EXPECT_EQ(signal({"57"}), "0 cancels");
  for (const auto& [text, number] :
       std::vector<std::pair<std::string, int>>{{"TERM", 15}, {"SIGKILL", 9}, {"2", 2}}) {
    EXPECT_EQ(signal({"-s", text, "57"}), absl::StrCat(number, " cancels"));
  }
  EXPECT_EQ(signal({"--signal", "USR1", "57"}), "10");
  EXPECT_EQ(signal({"-b", "-sUSR2", "57"}), "12 script");
  EXPECT_EQ(signal({"--full", "--signal=TERM", "57"}), "15 all");
  EXPECT_EQ(signal({"-f", "-sKILL", "57"}), "9 cancels all");
  EXPECT_EQ(Chosen({"-sFOO", "57"}), "Unknown job signal: FOO");
}

TEST(ScancelOptionsTest, ElementsOfAnArray) {
  std::vector<v1::JobStatus> jobs;
  for (uint32_t index = 0; index < 4; ++index) {
    jobs.push_back(TestJob(12 + index, absl::StrCat("sweep-", index), v1::QUEUED));
    jobs.back().set_array(12);
    jobs.back().set_array_index(index);
  }
  const auto chosen = [&](const std::vector<std::string>& arguments) {
    const auto options = ReadScancel(arguments);
    EXPECT_OK(options);
    const ToCancel found = ChooseToCancel(RecordsOf(jobs, {}), *options);
    std::vector<std::string> texts = found.errors;
    for (const JobRecord& record : found.records) texts.push_back(record.Id());
    return absl::StrJoin(texts, " ");
  };
  // The array's id means all of its elements.
  EXPECT_EQ(chosen({"12"}), "12_0 12_1 12_2 12_3");
  EXPECT_EQ(chosen({"12_2"}), "12_2");
  EXPECT_EQ(chosen({"12_[0-1,3]"}), "12_0 12_1 12_3");
  EXPECT_EQ(chosen({"13,15"}), "12_1 12_3");
  EXPECT_EQ(chosen({"12_7"}), "Kill job error on job id 12_7: Invalid job id specified");
}

// Nothing must be cancelled because of a filter that has no effect.
TEST(ScancelOptionsTest, Refused) {
  EXPECT_THAT(Chosen({"-A", "project"}), HasSubstr("error: -A: jobs of a cluster of Cadre"));
  EXPECT_THAT(Chosen({"--qos=low", "57"}), HasSubstr("no such property"));
  EXPECT_EQ(Chosen({}), "error: No job identification provided");
  EXPECT_EQ(Chosen({"-q"}), "option requires an argument -- 'q'");
  EXPECT_THAT(Chosen({"-t", "COMPLETED"}), HasSubstr("expected PENDING, RUNNING"));
}

}  // namespace
}  // namespace cadre::launcher
