#include "agent/cluster/log_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "agent/cluster/part_start.h"
#include "agent/run_files.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

class LogFileTest : public testing::Test {
 protected:
  LogFileTest() {
    read_.set_job("j");
    read_.set_user(ThisUser()->name);
    read_.set_dir(testing::TempDir() + "/logs-" + std::to_string(getpid()));
    read_.set_generation(3);
    read_.set_rank(1);
    read_.set_limit(4);
    read_.set_run("5Z");
    directory_ = RankDirectory(RunDirectory(read_.dir(), "j", "5Z"), 3, 1);
    std::filesystem::create_directories(directory_);
  }
  ~LogFileTest() override { std::filesystem::remove_all(read_.dir()); }

  v1::ReadLog read_;
  std::string directory_;
};

TEST_F(LogFileTest, PieceByPieceAndNothingAtTheEnd) {
  std::ofstream(directory_ + "/stdout.log") << "abcdef";
  EXPECT_EQ(ReadLogFile(read_, true)->bytes(), "abcd");
  read_.set_offset(4);
  EXPECT_EQ(ReadLogFile(read_, true)->bytes(), "ef");
  read_.set_offset(6);
  EXPECT_EQ(ReadLogFile(read_, true)->bytes(), "");
  std::ofstream(directory_ + "/stderr.log") << "oops";
  read_.set_standard_error(true);
  read_.set_offset(0);
  EXPECT_EQ(ReadLogFile(read_, true)->bytes(), "oops");
}

TEST_F(LogFileTest, TheEndAloneAndWhereItBegins) {
  std::ofstream(directory_ + "/stdout.log") << "abcdef";
  read_.set_tail(3);
  auto chunk = ReadLogFile(read_, true);
  ASSERT_THAT(chunk, IsOk());
  EXPECT_EQ(chunk->bytes(), "def");
  EXPECT_EQ(chunk->offset(), 3u);
  read_.set_tail(100);
  chunk = ReadLogFile(read_, true);
  ASSERT_THAT(chunk, IsOk());
  EXPECT_EQ(chunk->bytes(), "abcd");
  EXPECT_EQ(chunk->offset(), 0u);
}

TEST_F(LogFileTest, EachRunHasItsOwn_AndTheSameFileIsKnownAgain) {
  std::ofstream(directory_ + "/stdout.log") << "five";
  const std::string later = RankDirectory(RunDirectory(read_.dir(), "j", "5Z"), 4, 0);
  std::filesystem::create_directories(std::filesystem::path(later).parent_path());
  std::filesystem::create_directory_symlink("../generation_3/rank_1", later);
  const std::string file = ReadLogFile(read_, true)->file();
  EXPECT_NE(file, "");
  read_.set_generation(4);
  read_.set_rank(0);
  EXPECT_EQ(ReadLogFile(read_, true)->file(), file);
  read_.set_run("6Z");
  EXPECT_THAT(ReadLogFile(read_, true), StatusIs(absl::StatusCode::kNotFound));
  const std::string other = RankDirectory(RunDirectory(read_.dir(), "j", "6Z"), 4, 0);
  std::filesystem::create_directories(other);
  std::ofstream(other + "/stdout.log") << "six";
  EXPECT_EQ(ReadLogFile(read_, true)->bytes(), "six");
  EXPECT_NE(ReadLogFile(read_, true)->file(), file);
}

TEST_F(LogFileTest, WhatIsNoFileIsRefusedAtOnce) {
  EXPECT_THAT(ReadLogFile(read_, true), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_EQ(mkfifo((directory_ + "/stdout.log").c_str(), 0600), 0);
  EXPECT_THAT(ReadLogFile(read_, true), StatusIs(absl::StatusCode::kFailedPrecondition));
}

// The kernel opens these to a thread with root's capabilities, whatever its user is.
TEST_F(LogFileTest, ThroughALinkIntoProcNothingOfOthersIsRead) {
  if (geteuid() != 0) GTEST_SKIP() << "only root reads as somebody else";
  ASSERT_EQ(chmod(read_.dir().c_str(), 0755), 0);
  const std::string log = directory_ + "/stdout.log";
  for (const char* target : {"/proc/1/environ", "/proc/self/environ", "/proc/self/maps",
                             "/proc/thread-self/environ", "/proc/sys/kernel/cad_pid"}) {
    std::filesystem::create_symlink(target, log);
    for (const char* user : {"nobody", "root"}) {
      read_.set_user(user);
      EXPECT_THAT(ReadLogFile(read_, true), StatusIs(absl::StatusCode::kPermissionDenied))
          << target << " as " << user;
    }
    std::filesystem::remove(log);
  }
}

TEST_F(LogFileTest, ReadsWithTheRightsOfTheUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root reads as somebody else";
  const std::string secret = directory_ + "/secret";
  std::ofstream(secret) << "root's";
  // Nor does it keep the groups of root.
  ASSERT_EQ(chmod(secret.c_str(), 0640), 0);
  std::filesystem::create_symlink(secret, directory_ + "/stdout.log");
  EXPECT_EQ(ReadLogFile(read_, true)->bytes(), "root");
  // Nor as root for whoever says so, or for nobody.
  EXPECT_THAT(ReadLogFile(read_, false), StatusIs(absl::StatusCode::kPermissionDenied));
  read_.set_user("nobody");
  EXPECT_THAT(ReadLogFile(read_, true), StatusIs(absl::StatusCode::kPermissionDenied));
  // What may still come is another error.
  read_.set_user("");
  EXPECT_THAT(ReadLogFile(read_, true), StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace cadre::agent
