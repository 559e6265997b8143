#include "launcher/commands/past_runs.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "launcher/commands/past_run_for_test.h"

namespace cadre::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class PastRunsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/runs_XXXXXX";
    ASSERT_NE(mkdtemp(&name[0]), nullptr);
    directory_ = std::filesystem::canonical(name);
    logs_ = directory_ + "/logs";
    const char* const home = getenv("HOME");
    if (home != nullptr) home_before_ = home;
    setenv("HOME", name.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("HOME");
    if (home_before_.has_value()) setenv("HOME", home_before_->c_str(), 1);
  }
  void Run(const std::string& job, const std::string& run, const std::string& message) {
    WritePastRun(logs_, job, run, message);
  }
  std::string Chosen(const std::string& which) {
    const auto run = ChooseRun(RunsIn(logs_, "a"), which, absl::UTCTimeZone());
    return run.ok() ? run->run : std::string(run.status().message());
  }

  std::string Table(const std::vector<PastRun>& runs, size_t most = kRunsShown) {
    return RunsTable(runs, most, absl::UTCTimeZone(), &left_out_);
  }

  std::string directory_, logs_;
  std::optional<std::string> home_before_;
  std::vector<std::string> left_out_;
};

TEST_F(PastRunsTest, AreOpenedByNumberAndTime) {
  EXPECT_TRUE(RunsIn(logs_, "a").empty());
  Run("a", "20261122T011933.123456Z", "the first");
  Run("a", "20261122T091933.123456Z", "the second");
  Run("a", "20261123T011933.123456Z", "the third");
  Run("b", "20261124T011933.123456Z", "of another");
  EXPECT_EQ(Chosen(""), "20261123T011933.123456Z");
  EXPECT_EQ(Chosen("previous"), "20261122T091933.123456Z");
  EXPECT_EQ(Chosen("1"), "20261122T011933.123456Z");
  EXPECT_EQ(Chosen("2026-11-22"), "20261122T091933.123456Z") << "the last one of that day";
  EXPECT_EQ(Chosen("2026-11-22 01:19"), "20261122T011933.123456Z");
  EXPECT_EQ(Chosen("2026-11-22T01:19:33"), "20261122T011933.123456Z");
  EXPECT_EQ(Chosen("20261122T01"), "20261122T011933.123456Z");
  EXPECT_THAT(Chosen("4"), HasSubstr("job a has no run '4' in "));
  EXPECT_THAT(Chosen("2025"),
              HasSubstr("it has 3 runs, the last of which began at 2026-11-23 01:19:33"));
  EXPECT_EQ(RunsIn(logs_, "").size(), 4u);
  EXPECT_EQ(Table(RunsIn(logs_, "b")),
            "JOB  RUN  BEGAN                OUTCOME  TOOK  REASON\n"
            "b    1    2026-11-24 01:19:33  failed   2s    of another\n");
}

TEST_F(PastRunsTest, OfALauncherThatWasKilled_TheHistoryIsThere) {
  Run("a", "20261122T011933.123456Z", "");
  const PastRun run = RunsIn(logs_, "a")[0];
  const std::string directory = logs_ + "/a/run_20261122T011933.123456Z";
  EXPECT_EQ(StatusOf(run)->timeline().progress_size(), 0);
  std::ofstream(directory + "/history.json")
      << R"({"generations":[{"generation":"1","nodes":2}],"progress":[{"step":"7","loss":"NaN"}]})";
  EXPECT_EQ(StatusOf(run)->timeline().progress(0).step(), 7u);
  EXPECT_EQ(StatusOf(run)->timeline().generations(0).nodes(), 2u);
  std::ofstream(directory + "/history.json") << "{";
  EXPECT_THAT(std::string(StatusOf(run).status().message()), HasSubstr("history.json is damaged"));
}

TEST_F(PastRunsTest, TheirFilesSayWhatAServerWould) {
  Run("a", "20261122T011933.123456Z", "rank 0 died");
  const PastRun run = RunsIn(logs_, "a")[0];
  const auto status = StatusOf(run);
  ASSERT_OK(status);
  EXPECT_EQ(status->phase(), v1::FAILED);
  EXPECT_EQ(status->verdict().message(), "rank 0 died");
  EXPECT_EQ(status->run(), run.run);
  v1::ReadLogRequest request;
  request.set_generation(1);
  request.set_tail(4);
  auto read = ReadLogOf(run, request);
  ASSERT_OK(read);
  EXPECT_EQ(read->bytes(), "two\n");
  EXPECT_EQ(read->offset(), 4u);
  request.clear_tail();
  request.set_offset(8);
  read = ReadLogOf(run, request);
  ASSERT_OK(read);
  EXPECT_TRUE(read->ended());
  request.set_rank(1);
  EXPECT_TRUE(absl::IsNotFound(ReadLogOf(run, request).status()));
}

// The run's launcher was killed.
TEST_F(PastRunsTest, WithoutAVerdictItsOutputIsThereAllTheSame) {
  Run("a", "20261122T011933.123456Z", "");
  const auto status = StatusOf(RunsIn(logs_, "a")[0]);
  ASSERT_OK(status);
  EXPECT_FALSE(status->has_verdict());
  ASSERT_EQ(status->timeline().generations_size(), 1);
  EXPECT_EQ(status->timeline().generations(0).world_size(), 1u);
  std::vector<PastRun> runs = RunsIn(logs_, "a");
  EXPECT_THAT(Table(runs), HasSubstr("no verdict"));
  runs[0].suspended = 17;
  EXPECT_THAT(Table(runs), AllOf(Not(HasSubstr("no verdict")), HasSubstr("suspended"),
                                 HasSubstr("kill -CONT 17")));
}

TEST_F(PastRunsTest, TheNewestComeFirstAndTheRestIsCounted) {
  Run("zebra", "20261124T011933.123456Z", "x");
  Run("ape", "20261122T011933.123456Z", "x");
  Run("ape", "20261123T011933.123456Z", "x");
  std::vector<PastRun> runs = RunsIn(logs_, "");
  SortNewestFirst(&runs);
  EXPECT_THAT(Table(runs, 2), testing::ContainsRegex("zebra +1 .*\nape +2 .*\n"
                                                     "\\.\\.\\. and 1 older, --all shows them\n"));
  EXPECT_THAT(Table(runs), AllOf(testing::ContainsRegex("ape +1 "), Not(HasSubstr("older"))));
}

TEST_F(PastRunsTest, WhatCannotBeReadIsLeftOutWithAWord) {
  Run("a", "20261122T011933.123456Z", "x");
  Run("a", "20261123T011933.123456Z", "");
  std::filesystem::create_directory(logs_ + "/a/run_20261123T011933.123456Z/verdict.json");
  EXPECT_THAT(Table(RunsIn(logs_, "a")), AllOf(HasSubstr("failed"), Not(HasSubstr("a    2"))));
  ASSERT_EQ(left_out_.size(), 1u);
  EXPECT_THAT(left_out_[0], AllOf(HasSubstr("run 2 of job a is not shown: "), HasSubstr(logs_)));
}

TEST_F(PastRunsTest, TheDirectoriesUsedLastAreKnown) {
  const std::string before = std::filesystem::current_path();
  ASSERT_EQ(chdir(directory_.c_str()), 0);
  EXPECT_TRUE(KnownLogDirectories().empty());
  for (const char* name : {"logs", "x", "y"}) {
    std::filesystem::create_directories(directory_ + "/" + name);
  }
  for (const char* name : {"x", "y", "gone", "x"}) RememberLogDirectory(directory_ + "/" + name);
  EXPECT_THAT(KnownLogDirectories(),
              ElementsAre(directory_ + "/logs", directory_ + "/x", directory_ + "/y"));
  for (size_t i = 0; i < 2 * kRememberedDirectories; ++i) {
    RememberLogDirectory(directory_ + "/" + std::to_string(i));
  }
  EXPECT_THAT(KnownLogDirectories(), ElementsAre(directory_ + "/logs"));
  ASSERT_EQ(chdir(before.c_str()), 0);
}

}  // namespace
}  // namespace cadre::launcher
