#include "base/tokens/renewed_token.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/status_matchers.h"
#include "base/token.h"
#include "gtest/gtest.h"
#include "tests/testing/file_systems.h"

namespace cadre {
namespace {

TEST(RenewedTokenTest, WhatTheFileHoldsNowCounts) {
  std::string directory = ::testing::TempDir() + "/token_XXXXXX";
  ASSERT_NE(mkdtemp(&directory[0]), nullptr);
  const std::string file = directory + "/token";
  const std::string first = RandomToken(), second = RandomToken();
  ASSERT_OK(WriteTokenFile(file, first));
  RenewedToken token(first, file);
  EXPECT_EQ(token.Current(), first);
  ASSERT_OK(WriteTokenFile(file, second));
  EXPECT_EQ(token.Current(), second);
  // If the file is open to others, too short or missing, the last valid token is kept.
  chmod(file.c_str(), 0644);
  EXPECT_EQ(token.Current(), second);
  std::filesystem::remove(file);
  EXPECT_EQ(token.Current(), second);
}

// Fault (access): A token's file is on a file system that does not answer -> The token that was
// read last stays in use
TEST(RenewedTokenTest, AFileSystemThatDoesNotAnswerIsNotWaitedForForEver) {
  const auto disk = HangingFileSystem::Mount();
  if (absl::IsFailedPrecondition(disk.status())) GTEST_SKIP() << disk.status().message();
  ASSERT_OK(disk);
  const std::string first = RandomToken(), second = RandomToken();
  ASSERT_OK(WriteTokenFile((*disk)->behind() + "/token", first));
  RenewedToken token(first, (*disk)->path() + "/token");
  (*disk)->Hang();
  ASSERT_OK(WriteTokenFile((*disk)->behind() + "/token", second));
  EXPECT_EQ(token.Current(), first);
  (*disk)->Resume();
  while (token.Current() != second) {
  }
}

TEST(RenewedTokenTest, WithoutAFileItStays) {
  RenewedToken token("as it came", "");
  EXPECT_EQ(token.Current(), "as it came");
}

}  // namespace
}  // namespace cadre
