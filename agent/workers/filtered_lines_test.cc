#include <stdlib.h>
#include <sys/mount.h>

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "agent/workers/worker_outputs.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/file_systems.h"

namespace cadre::agent {
namespace {

std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Retries, because a busy machine may need longer than one Drain().
bool Drained(FilteredLines& lines) {
  for (int i = 0; i < 20; ++i) {
    if (lines.Drain()) return true;
  }
  return false;
}

TEST(FilteredLines, LinesWithOneOfTheTexts_AreWrittenOnceMore) {
  const std::string path = testing::TempDir() + "/filtered_stdout.log";
  FilteredLines lines({"apple", "orange"});
  lines.Add("[n:0] apple before the file is there\n", 6);
  ASSERT_TRUE(lines.Open(path));
  lines.Add("[n:0] an apple\n[n:0] a pear\n[n:0] \n[n:0] oranges\n", 6);
  lines.Add("[apple:1] a pear\n", 10);
  EXPECT_TRUE(Drained(lines));
  EXPECT_EQ(TextOf(path), "[n:0] an apple\n[n:0] oranges\n");
  // The file of the next generation.
  ASSERT_TRUE(lines.Open(path + ".2"));
  lines.Add("[n:0] apple\n", 6);
  EXPECT_TRUE(Drained(lines));
  EXPECT_EQ(TextOf(path + ".2"), "[n:0] apple\n");
  EXPECT_FALSE(lines.Open(path + "/below/a/file"));
}

TEST(FilteredLines, AFileThatCouldNotBeOpenedInTime_GetsThoseThatComeLater) {
  const auto disk = HangingFileSystem::Mount();
  if (absl::IsFailedPrecondition(disk.status())) GTEST_SKIP() << disk.status().message();
  ASSERT_OK(disk);
  FilteredLines lines({"apple"});
  (*disk)->Hang();
  for (const char* name : {"/1.log", "/2.log", "/3.log"}) {
    EXPECT_TRUE(lines.Open((*disk)->path() + name));
  }
  lines.Add("an apple\n", 0);
  (*disk)->Resume();
  const std::string written = (*disk)->behind() + "/3.log";
  for (const MonoTime end = MonoNow() + absl::Seconds(20);
       TextOf(written).find("another") == std::string::npos && MonoNow() < end;) {
    lines.Add("another apple\n", 0);
  }
  EXPECT_THAT(TextOf(written), testing::HasSubstr(" bytes are missing here]\nanother apple\n"));
}

TEST(FilteredLines, NobodyWaitsForAFileSystemThatAnswersLate) {
  const auto disk = HangingFileSystem::Mount();
  if (absl::IsFailedPrecondition(disk.status())) GTEST_SKIP() << disk.status().message();
  ASSERT_OK(disk);
  FilteredLines lines({"apple"});
  ASSERT_TRUE(lines.Open((*disk)->path() + "/filtered_stdout.log"));
  (*disk)->Hang();
  const MonoTime begin = MonoNow();
  lines.Add("an apple\n", 0);
  EXPECT_LT(MonoNow() - begin, kFileTaskHungAfter);
  (*disk)->Resume();
  EXPECT_TRUE(Drained(lines));
  EXPECT_EQ(TextOf((*disk)->behind() + "/filtered_stdout.log"), "an apple\n");
}

TEST(FilteredLines, AFullDisk_LosesLinesAndTheFileSaysSoWhenThereIsRoom) {
  std::string disk = testing::TempDir() + "/filtered_XXXXXX";
  ASSERT_NE(mkdtemp(disk.data()), nullptr);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=16k,mode=755") != 0) {
    GTEST_SKIP() << "needs the right to mount";
  }
  const std::string path = disk + "/filtered_stdout.log";
  FilteredLines lines({"apple"});
  EXPECT_TRUE(lines.Open(path));
  std::string all;
  while (all.size() < (40 << 10)) {
    const std::string line = std::string(1000, 'x') + " apple\n";
    lines.Add(line, 0);
    all += line;
  }
  EXPECT_TRUE(Drained(lines));
  const size_t kept = TextOf(path).size();
  EXPECT_EQ(mount("tmpfs", disk.c_str(), "tmpfs", MS_REMOUNT, "size=1m"), 0);
  lines.Add("another apple\n", 0);
  lines.Add("the last apple\n", 0);
  EXPECT_TRUE(Drained(lines));
  const std::string text = TextOf(path);
  umount2(disk.c_str(), MNT_DETACH);
  EXPECT_EQ(text, absl::StrCat(all.substr(0, kept), "\n[", all.size() - kept,
                               " bytes are missing here]\nanother apple\nthe last apple\n"));
}

TEST(FilteredLines, NoTexts_NoLines) {
  const std::string path = testing::TempDir() + "/none.log";
  FilteredLines lines({});
  EXPECT_FALSE(lines.wanted());
  ASSERT_TRUE(lines.Open(path));
  lines.Add("apple\n", 0);
  EXPECT_EQ(TextOf(path), "");
}

}  // namespace
}  // namespace cadre::agent
