#include "worker_runtime/memory/spill_directory.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "worker_runtime/memory/files/memory_slots.h"
#include "worker_runtime/memory/files/slot_file.h"

namespace cadre::memory {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SpillDirectoryTest : public ::testing::Test {
 protected:
  ~SpillDirectoryTest() override { fs::remove_all(path_); }

  static std::string MakeFolder() {
    std::string pattern = ::testing::TempDir() + "/spill_directory_XXXXXX";
    EXPECT_NE(mkdtemp(&pattern[0]), nullptr);
    return pattern;
  }
  // By both of two ranks.
  void WriteBoth(int64_t step, const std::string& token = "token") const {
    for (const SpillDirectory* rank : {&first_, &second_}) {
      ASSERT_OK(rank->Write(SpillDirectory::Name(step, token), "state", 5));
    }
  }
  std::vector<int64_t> Whole() const {
    std::vector<int64_t> steps;
    for (const Spilled& one : first_.Whole()) steps.push_back(one.step);
    return steps;
  }
  std::string File(const std::string& name, const std::string& prefix) const {
    for (const auto& entry : fs::directory_iterator(path_ + "/" + name)) {
      if (entry.path().filename().string().rfind(prefix, 0) == 0) return entry.path().string();
    }
    return "";
  }

  const std::string path_ = MakeFolder();
  const SpillDirectory first_{path_, 0, 2}, second_{path_, 1, 2};
};

TEST_F(SpillDirectoryTest, AStepIsWholeOnceAllRanksHaveWrittenIt) {
  EXPECT_THAT(Whole(), ElementsAre());
  ASSERT_OK(first_.Write("step_3_a", "state", 5));
  EXPECT_THAT(Whole(), ElementsAre());
  // Of another save of that step.
  ASSERT_OK(second_.Write("step_3_b", "state", 5));
  EXPECT_THAT(Whole(), ElementsAre());
  ASSERT_OK(second_.Write("step_3_a", "state", 5));
  EXPECT_THAT(Whole(), ElementsAre(3));
  WriteBoth(12);
  EXPECT_THAT(Whole(), ElementsAre(12, 3));
  EXPECT_TRUE(SpillDirectory(path_, 0, 3).Whole().empty());
}

TEST_F(SpillDirectoryTest, WhatWasWrittenIsRead) {
  ASSERT_OK(first_.Write("step_3_a", "state", 5));
  MemorySlots slots(path_, "slots", 1);
  ASSERT_OK(first_.Read("step_3_a", slots));
  ASSERT_OK(slots.Commit(3, 1, 2));
  const auto state = MapState(slots.Path(0), 5);
  ASSERT_OK(state);
  EXPECT_EQ(std::string(state->data() + kStateOffset, 5), "state");
  EXPECT_EQ(second_.Read("step_3_a", slots).code(), StatusCode::kFailedPrecondition);
}

TEST_F(SpillDirectoryTest, StatesOfAnotherNumberOfRanksAreNamedAndStay) {
  WriteBoth(2);
  WriteBoth(7);
  ASSERT_OK(first_.Write(SpillDirectory::Name(9, "half"), "state", 5));
  const SpillDirectory alone(path_, 0, 1);
  EXPECT_EQ(alone.OfOtherRanks(), "step 7 of 2 ranks");
  EXPECT_EQ(first_.OfOtherRanks(), "");
  for (const int64_t step : {10, 11, 12}) {
    ASSERT_OK(alone.Write(SpillDirectory::Name(step, "alone"), "state", 5));
  }
  alone.RemoveOld({});
  EXPECT_EQ(alone.Whole().size(), 2u);
  EXPECT_THAT(Whole(), ElementsAre(7, 2));
  EXPECT_EQ(second_.OfOtherRanks(), "step 12 of 1 rank");
}

TEST_F(SpillDirectoryTest, ADamagedOneIsDataLoss) {
  WriteBoth(3);
  std::ofstream(File("step_3_token", "rank-0")) << "stave";
  fs::resize_file(File("step_3_token", "rank-1"), 4);
  MemorySlots slots(path_, "slots", 1);
  EXPECT_EQ(first_.Read("step_3_token", slots).code(), StatusCode::kDataLoss);
  EXPECT_EQ(second_.Read("step_3_token", slots).code(), StatusCode::kDataLoss);
}

// As an attacker would in a place where everybody may make directories.
TEST_F(SpillDirectoryTest, AStateThatAnotherUserPlantedIsNeverLoaded) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make files of others";
  ASSERT_EQ(chmod(path_.c_str(), 01777), 0);
  WriteBoth(3);
  WriteBoth(9);
  const std::string planted = path_ + "/step_9_token";
  ASSERT_EQ(chown(planted.c_str(), 64123, -1), 0);
  EXPECT_THAT(Whole(), ElementsAre(3));
  EXPECT_EQ(first_.Newest(), (std::pair<int64_t, int>(3, 2)));
  MemorySlots slots(path_, "slots", 1);
  EXPECT_FALSE(first_.Read("step_9_token", slots).ok());
  EXPECT_THAT(first_.OfOtherUsers(), HasSubstr("/step_9_token belongs to user 64123"));
  EXPECT_FALSE(first_.Write("step_9_token", "state", 5).ok());
  // Nor through a link of theirs, nor a file of theirs in a directory of ours.
  ASSERT_EQ(chown(planted.c_str(), geteuid(), -1), 0);
  ASSERT_EQ(chown(File("step_9_token", "rank-0").c_str(), 64123, -1), 0);
  EXPECT_EQ(first_.Read("step_9_token", slots).code(), StatusCode::kPermissionDenied);
  fs::create_directory_symlink("step_9_token", path_ + "/step_11_token");
  ASSERT_EQ(lchown((path_ + "/step_11_token").c_str(), 64123, -1), 0);
  EXPECT_FALSE(second_.Read("step_11_token", slots).ok());
  EXPECT_OK(second_.Read("step_9_token", slots));
}

TEST_F(SpillDirectoryTest, NoRoomIsMadeForWhatOnlyTheNameHas) {
  ASSERT_OK(first_.Write("step_3_a", "state", 5));
  const std::string file = File("step_3_a", "rank-0");
  fs::rename(file, path_ + "/step_3_a/rank-0-of-2_1000000000000000_12345678");
  MemorySlots slots(path_, "slots", 1);
  EXPECT_EQ(first_.Read("step_3_a", slots).code(), StatusCode::kDataLoss);
}

TEST_F(SpillDirectoryTest, TheLastTwoWholeOnesAreKept) {
  for (const int64_t step : {1, 2, 3}) WriteBoth(step);
  ASSERT_OK(first_.Write("step_1_half", "state", 5));
  ASSERT_OK(first_.Write("step_4_half", "state", 5));
  fs::create_directory(path_ + "/somebody's");
  first_.RemoveOld({});
  EXPECT_THAT(Whole(), ElementsAre(3, 2));
  EXPECT_FALSE(fs::exists(path_ + "/step_1_half"));
  EXPECT_TRUE(fs::exists(path_ + "/step_4_half"));
  EXPECT_TRUE(fs::exists(path_ + "/somebody's"));
}

// Where training went back, what somebody writes is of a step below those of before.
TEST_F(SpillDirectoryTest, WhatIsRecentStaysThoughItsStepIsLow) {
  WriteBoth(7);
  WriteBoth(8);
  ASSERT_OK(first_.Write("step_2_recent", "state", 5));
  ASSERT_OK(first_.Write("step_2_old", "state", 5));
  first_.RemoveOld({"recent"});
  EXPECT_TRUE(fs::exists(path_ + "/step_2_recent"));
  EXPECT_FALSE(fs::exists(path_ + "/step_2_old"));
}

TEST_F(SpillDirectoryTest, OfWhatIsUnfinishedOnlyThatWhichSomebodyWritesStays) {
  WriteBoth(1, "whole");
  ASSERT_OK(first_.Write("step_2_half", "state", 5));
  ASSERT_OK(second_.Write("step_3_half", "state", 5));
  ASSERT_OK(first_.Write("step_4_written", "state", 5));
  std::ofstream(path_ + "/step_4_written/.tmp-1") << "sta";
  ASSERT_OK(first_.Write("step_5_later", "state", 5));
  EXPECT_THAT(first_.RemoveUnfinished({"whole", "half", "written"}), ElementsAre("written"));
  EXPECT_TRUE(fs::exists(path_ + "/step_1_whole"));
  EXPECT_FALSE(fs::exists(path_ + "/step_2_half"));
  EXPECT_FALSE(fs::exists(path_ + "/step_3_half"));
  EXPECT_TRUE(fs::exists(path_ + "/step_4_written"));
  EXPECT_TRUE(fs::exists(path_ + "/step_5_later"));
}

TEST_F(SpillDirectoryTest, ADirectoryThatCannotBeWrittenToIsSaidInOneLine) {
  std::ofstream(path_ + "/file") << "no directory";
  const Status status = SpillDirectory(path_ + "/file/below", 0, 1).Check();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("/file/below"), HasSubstr("share")));
  EXPECT_OK(SpillDirectory(path_ + "/new/below", 0, 1).Check());
  EXPECT_TRUE(fs::is_empty(path_ + "/new/below"));
}

}  // namespace
}  // namespace cadre::memory
