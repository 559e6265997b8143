#include "agent/run_files.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace cadre {
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
  EXPECT_EQ(RankDirectory("logs", "mnist", 3, 12), "logs/mnist/generation_3/rank_12");
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
  ASSERT_OK(WriteVerdict(directory + "/new", verdict, timeline));
  ASSERT_OK(WriteVerdict(directory + "/new", verdict, timeline));

  const nlohmann::json read = ReadJson(directory + "/new/mnist/verdict.json");
  EXPECT_EQ(read["exit_status"], 137);
  EXPECT_EQ(read["outcome"], "FAILED");
  EXPECT_EQ(read["root_cause"]["cause"], "CRASH");
  EXPECT_EQ(read["root_cause"]["rank"], 0);
  EXPECT_EQ(ReadJson(directory + "/new/mnist/timeline.json")["generations"][0]["world_size"], 4);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory + "/new/mnist"), {}), 2);
}

TEST(RemoveVerdict, RemovesBothFilesAndNothingElse) {
  const std::string directory = TemporaryDirectory();
  EXPECT_OK(RemoveVerdict(directory, "mnist"));
  EXPECT_EQ(VerdictMark(directory, "mnist"), "");
  v1::Verdict verdict;
  verdict.set_job("mnist");
  ASSERT_OK(WriteVerdict(directory, verdict, {}));
  EXPECT_NE(VerdictMark(directory, "mnist"), "");
  ASSERT_OK(WriteFile(directory + "/mnist/other.json", "{}"));
  ASSERT_OK(RemoveVerdict(directory, "mnist"));
  EXPECT_FALSE(std::filesystem::exists(directory + "/mnist/verdict.json"));
  EXPECT_FALSE(std::filesystem::exists(directory + "/mnist/timeline.json"));
  EXPECT_TRUE(std::filesystem::exists(directory + "/mnist/other.json"));
}

TEST(WriteVerdict, DirectoryThatCannotBeMade_IsNamed) {
  v1::Verdict verdict;
  verdict.set_job("mnist");
  EXPECT_THAT(WriteVerdict("/proc/none", verdict, {}).message(),
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

TEST(LinkDirectory, LeadsToTheOther_UntilItIsRemoved) {
  const std::string root = TemporaryDirectory();
  const std::string first = RankDirectory(root, "j", 1, 3), second = RankDirectory(root, "j", 2, 3);
  ASSERT_OK(MakeDirectories(first));
  ASSERT_OK(MakeDirectories(second));
  ASSERT_OK(LinkDirectory(second, first));
  ASSERT_OK(WriteFile(first + "/stdout.log", "out"));
  EXPECT_TRUE(std::filesystem::exists(second + "/stdout.log"));
  // The tree may be moved.
  EXPECT_EQ(std::filesystem::read_symlink(second), "../generation_1/rank_3");
  // What has something in it stays.
  EXPECT_THAT(LinkDirectory(first, second), StatusIs(absl::StatusCode::kFailedPrecondition));
  RemoveLink(first);
  RemoveLink(second);
  EXPECT_TRUE(std::filesystem::exists(first + "/stdout.log"));
  EXPECT_FALSE(std::filesystem::exists(second));
}

}  // namespace
}  // namespace cadre
