#include "agent/workers/run_logs.h"

#include <stdlib.h>

#include <filesystem>

#include "agent/run_files.h"
#include "base/own_files.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::IsEmpty;

class RunLogsTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(root_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(root_); }

  bool Exists(const std::string& name) { return std::filesystem::exists(root_ + "/j/" + name); }

  std::string root_ = ::testing::TempDir() + "/run_logs_XXXXXX";
};

TEST_F(RunLogsTest, NamesOfTheJobLeadToTheNewestRun) {
  RunLogs logs(root_, "j");
  logs.SetGeneration("1Z", 1);
  ASSERT_OK(MakeDirectories(logs.GenerationPath()));
  ASSERT_OK(logs.LinkGeneration());
  ASSERT_OK(WriteVerdict(logs.RunPath(), v1::Verdict(), {}));
  ASSERT_TRUE(Exists("generation_1"));
  ASSERT_TRUE(Exists("verdict.json"));

  logs.SetGeneration("2Z", 1);
  EXPECT_THAT(logs.UnlinkEarlierRuns(), IsEmpty());
  EXPECT_FALSE(Exists("generation_1"));
  EXPECT_FALSE(Exists("verdict.json"));
  EXPECT_TRUE(Exists("run_1Z/verdict.json"));
  ASSERT_OK(MakeDirectories(logs.GenerationPath()));
  ASSERT_OK(logs.LinkGeneration());
  EXPECT_EQ(std::filesystem::read_symlink(root_ + "/j/generation_1"), "run_2Z/generation_1");
}

TEST_F(RunLogsTest, ARankThatGoesOnIsFoundInTheNewGeneration) {
  RunLogs logs(root_, "j");
  logs.SetGeneration("1Z", 1);
  ASSERT_OK(MakeDirectories(logs.RankPath(0, "")));
  ASSERT_OK(WriteFile(logs.RankPath(0, "stdout.log"), "out"));
  const std::string first = RankDirectory(logs.RunPath(), 1, 0);
  logs.SetGeneration("1Z", 2);
  ASSERT_OK(MakeDirectories(logs.RankPath(3, "")));
  logs.LinkRank(3, first);
  EXPECT_TRUE(Exists("run_1Z/generation_2/rank_3/stdout.log"));
}

TEST_F(RunLogsTest, AnotherNodesVerdictIsKept_AnEarlierRunsIsNot) {
  v1::Verdict earlier;
  earlier.set_exit_status(7);
  ASSERT_OK(WriteVerdict(root_ + "/j", earlier, {}));
  const std::string first = VerdictMark(root_, "j");
  const RunLogs logs(root_, "j");
  Exit exit = {};
  exit.status = 69;
  EXPECT_THAT(logs.WriteExitFiles("n", exit), IsEmpty());
  const std::string own = VerdictMark(root_, "j");
  EXPECT_NE(own, first);
  ASSERT_OK(WriteVerdict(root_ + "/j", earlier, {}));
  const std::string others = VerdictMark(root_, "j");
  EXPECT_NE(own, others);
  EXPECT_THAT(logs.WriteExitFiles("n", exit), IsEmpty());
  EXPECT_EQ(VerdictMark(root_, "j"), others);
}

TEST_F(RunLogsTest, WithoutADirectoryNothingIsKept) {
  RunLogs logs("", "j");
  logs.SetGeneration("1Z", 1);
  EXPECT_THAT(logs.UnlinkEarlierRuns(), IsEmpty());
  EXPECT_OK(logs.LinkGeneration());
  EXPECT_EQ(logs.RankPath(0, "evidence.txt"), "");
  EXPECT_EQ(logs.GenerationPath(), "");
}

TEST_F(RunLogsTest, WhatCannotBeRemovedIsSaid) {
  RunLogs logs(root_, "j");
  logs.SetGeneration("1Z", 1);
  ASSERT_OK(MakeDirectories(root_ + "/j/verdict.json"));
  EXPECT_EQ(logs.UnlinkEarlierRuns().size(), 1u);
}

}  // namespace
}  // namespace cadre::agent
