#include "agent/run_files.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/own_files.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace cadre::agent {
namespace {

std::string TemporaryDirectory() {
  std::string path = testing::TempDir() + "/run_files_XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

nlohmann::json ReadJson(const std::string& path) {
  std::stringstream content;
  content << std::ifstream(path).rdbuf();
  return nlohmann::json::parse(content.str(), nullptr, false);
}

TEST(RankDirectory, Layout) {
  EXPECT_EQ(RankDirectory(RunDirectory("logs", "mnist", "5Z"), 3, 12),
            "logs/mnist/run_5Z/generation_3/rank_12");
  EXPECT_EQ(RunDirectory("logs", "mnist", ""), "logs/mnist");
}

TEST(LinkToRun, TheNewestIsWhereTheJobIs_AndTheOthersKeepTheirs) {
  const std::string root = TemporaryDirectory();
  const std::string old_run = RunDirectory(root, "j", "1Z"), run = RunDirectory(root, "j", "2Z");
  for (const char* name : {"generation_1", "generation_2"}) {
    ASSERT_OK(MakeDirectories(old_run + "/" + name));
    ASSERT_OK(WriteFile(old_run + "/" + name + "/log", "old"));
    ASSERT_OK(LinkToRun(old_run, name));
  }
  ASSERT_OK(MakeDirectories(run + "/generation_1"));
  ASSERT_OK(WriteFile(root + "/j/job.sh", "a user's"));
  UnlinkOtherRuns(run);
  EXPECT_FALSE(std::filesystem::exists(root + "/j/generation_1"));
  ASSERT_OK(LinkToRun(run, "generation_1"));
  ASSERT_OK(LinkToRun(run, "generation_1"));
  // Another node of the same run comes later.
  UnlinkOtherRuns(run);
  // The links are relative, since the tree may be moved.
  EXPECT_EQ(std::filesystem::read_symlink(root + "/j/generation_1"), "run_2Z/generation_1");
  EXPECT_FALSE(std::filesystem::exists(root + "/j/generation_1/log"));
  EXPECT_FALSE(std::filesystem::exists(root + "/j/generation_2"));
  EXPECT_TRUE(std::filesystem::exists(old_run + "/generation_2/log"));
  EXPECT_TRUE(std::filesystem::exists(root + "/j/job.sh"));
  // Two runs, a link and a file.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root + "/j"), {}), 4);
}

// All users of a cluster may be able to make directories in the shared log directory.
TEST(RunFilesTest, AJobsDirectoryThatAnotherMadeFirstTakesNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make files of others";
  const std::string root = std::filesystem::canonical(TemporaryDirectory());
  const std::string run = RunDirectory(root, "j", "1Z");
  ASSERT_EQ(chmod(root.c_str(), 01777), 0);
  ASSERT_OK(MakeRunDirectory(root, "j/run_1Z/generation_1/rank_0"));
  ASSERT_OK(WriteVerdict(run, v1::Verdict(), v1::Timeline()));
  for (const std::string& theirs : {root + "/j", run, run + "/generation_1"}) {
    ASSERT_EQ(chown(theirs.c_str(), 64123, -1), 0);
    int error = 0;
    EXPECT_THAT(MakeRunDirectory(root, "j/run_1Z/generation_1/rank_1", &error),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         testing::HasSubstr(theirs + " belongs to user 64123")));
    EXPECT_EQ(error, EPERM);
    if (theirs != run + "/generation_1") {
      EXPECT_FALSE(WriteVerdict(run, v1::Verdict(), v1::Timeline()).ok());
    }
    ASSERT_EQ(chown(theirs.c_str(), geteuid(), -1), 0);
  }
  ASSERT_EQ(chown((root + "/j").c_str(), 64123, -1), 0);
  EXPECT_FALSE(LinkToRun(run, "generation_1").ok());
  EXPECT_FALSE(WriteFile(root + "/j/job.sh", "x").ok());
  std::ofstream(root + "/j/verdict") << "theirs";
  ASSERT_EQ(symlink("run_0Z/generation_9", (root + "/j/generation_9").c_str()), 0);
  UnlinkOtherRuns(run);
  EXPECT_FALSE(RemoveVerdict(root + "/j").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(root + "/j/generation_9"));
}

// As on two nodes that share the directory and whose launchers have the same pid.
//
// Fault (display): Launchers with the same PID, as in containers, share a log directory -> Each
// writes the files that it replaces under a temporary name of its own
TEST(WriteFile, LeavesAloneWhatAnotherLauncherOfItsPidIsWriting) {
  const std::string root = TemporaryDirectory(), run = RunDirectory(root, "j", "1Z");
  ASSERT_OK(MakeDirectories(run));
  const std::string half = absl::StrCat(run, "/verdict.json.", getpid(), ".part");
  const std::string link = absl::StrCat(root, "/j/verdict.json.", getpid(), ".link");
  std::ofstream(half) << "half of";
  std::filesystem::create_symlink("run_1Z/verdict.json", link);
  ASSERT_OK(WriteFile(run + "/verdict.json", "all of it"));
  ASSERT_OK(LinkToRun(run, "verdict.json"));
  std::stringstream content;
  content << std::ifstream(half).rdbuf();
  EXPECT_EQ(content.str(), "half of");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  content.str("");
  content << std::ifstream(root + "/j/verdict.json").rdbuf();
  EXPECT_EQ(content.str(), "all of it");
  // Nothing else is left in either directory.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(run), {}), 2);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root + "/j"), {}), 3);
}

TEST(WriteVerdict, BothFiles_HaveTheNamesOfTheProto) {
  const std::string directory = TemporaryDirectory();
  v1::Verdict verdict;
  verdict.set_job("mnist");
  verdict.set_outcome(v1::FAILED);
  verdict.set_exit_status(137);
  verdict.mutable_root_cause()->set_cause(v1::CRASH);
  v1::Timeline timeline;
  timeline.set_job("mnist");
  timeline.add_generations()->set_world_size(4);
  const std::string earlier = RunDirectory(directory + "/new", "mnist", "1Z");
  ASSERT_OK(WriteVerdict(earlier, v1::Verdict(), v1::Timeline()));
  const std::string run = RunDirectory(directory + "/new", "mnist", "2Z");
  ASSERT_OK(WriteVerdict(run, verdict, timeline));
  ASSERT_OK(WriteVerdict(run, verdict, timeline));

  const nlohmann::json read = ReadJson(directory + "/new/mnist/verdict.json");
  EXPECT_EQ(read["exit_status"], 137);
  EXPECT_EQ(read["outcome"], "FAILED");
  EXPECT_EQ(read["root_cause"]["cause"], "CRASH");
  EXPECT_EQ(read["root_cause"]["rank"], 0);
  EXPECT_EQ(ReadJson(directory + "/new/mnist/timeline.json")["generations"][0]["world_size"], 4);
  EXPECT_EQ(ReadJson(run + "/verdict.json"), read);
  EXPECT_EQ(ReadJson(earlier + "/verdict.json")["exit_status"], 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory + "/new/mnist"), {}), 4);
}

TEST(RemoveVerdict, RemovesBothFilesAndNothingElse) {
  const std::string directory = TemporaryDirectory();
  EXPECT_OK(RemoveVerdict(directory + "/mnist"));
  EXPECT_EQ(VerdictMark(directory, "mnist"), "");
  const std::string run = RunDirectory(directory, "mnist", "1Z");
  ASSERT_OK(WriteVerdict(run, v1::Verdict(), {}));
  EXPECT_NE(VerdictMark(directory, "mnist"), "");
  ASSERT_OK(WriteFile(directory + "/mnist/other.json", "{}"));
  ASSERT_OK(RemoveVerdict(directory + "/mnist"));
  EXPECT_FALSE(std::filesystem::exists(directory + "/mnist/verdict.json"));
  EXPECT_FALSE(std::filesystem::exists(directory + "/mnist/timeline.json"));
  EXPECT_TRUE(std::filesystem::exists(directory + "/mnist/other.json"));
  EXPECT_TRUE(std::filesystem::exists(run + "/verdict.json"));
}

TEST(WriteVerdict, DirectoryThatCannotBeMade_IsNamed) {
  EXPECT_THAT(WriteVerdict("/proc/none/mnist", v1::Verdict(), {}).message(),
              testing::HasSubstr("/proc/none/mnist"));
}

TEST(WithErrorCode, Cases) {
  v1::WorkerExit exit;
  const std::string file = R"({"message":{"message":"ValueError: x"}})";
  EXPECT_EQ(WithErrorCode(file, exit), file);
  exit.set_exit_code(3);
  EXPECT_EQ(nlohmann::json::parse(WithErrorCode(file, exit))["message"]["errorCode"], 3);
  exit.set_signal(9);
  EXPECT_EQ(nlohmann::json::parse(WithErrorCode(file, exit))["message"]["errorCode"], -9);
  for (const char* other : {"not json", "[1]", R"({"message":"text","timestamp":5})", ""}) {
    EXPECT_EQ(WithErrorCode(other, exit), other);
  }
}

TEST(LinkDirectory, LeadsToTheOther) {
  const std::string root = TemporaryDirectory();
  const std::string first = RankDirectory(root, 1, 3), second = RankDirectory(root, 2, 3);
  ASSERT_OK(MakeDirectories(first));
  ASSERT_OK(MakeDirectories(second));
  ASSERT_OK(LinkDirectory(second, first));
  ASSERT_OK(WriteFile(first + "/stdout.log", "out"));
  EXPECT_TRUE(std::filesystem::exists(second + "/stdout.log"));
  // The links are relative, since the tree may be moved.
  EXPECT_EQ(std::filesystem::read_symlink(second), "../generation_1/rank_3");
  // A directory that is not empty stays.
  EXPECT_THAT(LinkDirectory(first, second), StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace cadre::agent
