#include "worker_runtime/memory/spill.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "worker_runtime/memory/files/memory_slots.h"

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
  // Writes the states of both ranks.
  void WriteBoth(int64_t step, const std::string& token = "token") const {
    for (const SpillDirectory* rank : {&first_, &second_}) {
      ASSERT_OK(rank->Write(SpillDirectory::Name(step, token), "state", 5));
    }
  }
  std::vector<int64_t> Complete() const {
    std::vector<int64_t> steps;
    for (const Spilled& one : first_.Complete()) steps.push_back(one.step);
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
  EXPECT_THAT(Complete(), ElementsAre());
  ASSERT_OK(first_.Write("step_3_a", "state", 5));
  EXPECT_THAT(Complete(), ElementsAre());
  // This state is of another save of the same step.
  ASSERT_OK(second_.Write("step_3_b", "state", 5));
  EXPECT_THAT(Complete(), ElementsAre());
  ASSERT_OK(second_.Write("step_3_a", "state", 5));
  EXPECT_THAT(Complete(), ElementsAre(3));
  WriteBoth(12);
  EXPECT_THAT(Complete(), ElementsAre(12, 3));
  EXPECT_TRUE(SpillDirectory(path_, 0, 3).Complete().empty());
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
  EXPECT_EQ(alone.DescribeOtherRankCounts(), "step 7 of 2 ranks");
  EXPECT_EQ(first_.DescribeOtherRankCounts(), "");
  for (const int64_t step : {10, 11, 12}) {
    ASSERT_OK(alone.Write(SpillDirectory::Name(step, "alone"), "state", 5));
  }
  alone.RemoveOld({});
  EXPECT_EQ(alone.Complete().size(), 2u);
  EXPECT_THAT(Complete(), ElementsAre(7, 2));
  EXPECT_EQ(second_.DescribeOtherRankCounts(), "step 12 of 1 rank");
}

TEST_F(SpillDirectoryTest, ADamagedOneIsDataLoss) {
  WriteBoth(3);
  std::ofstream(File("step_3_token", "rank-0")) << "stave";
  fs::resize_file(File("step_3_token", "rank-1"), 4);
  MemorySlots slots(path_, "slots", 1);
  EXPECT_EQ(first_.Read("step_3_token", slots).code(), StatusCode::kDataLoss);
  EXPECT_EQ(second_.Read("step_3_token", slots).code(), StatusCode::kDataLoss);
}

// An attacker could do this in a directory where every user may create directories.
//
// Fault (checkpoint): Another user plants a state in the directory that states are spilled to -> It
// is skipped, which is reported
TEST_F(SpillDirectoryTest, AStateThatAnotherUserPlantedIsNeverLoaded) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make files of others";
  ASSERT_EQ(chmod(path_.c_str(), 01777), 0);
  WriteBoth(3);
  WriteBoth(9);
  const std::string planted = path_ + "/step_9_token";
  ASSERT_EQ(chown(planted.c_str(), 64123, -1), 0);
  EXPECT_THAT(Complete(), ElementsAre(3));
  EXPECT_EQ(first_.Newest(), (std::pair<int64_t, int>(3, 2)));
  MemorySlots slots(path_, "slots", 1);
  EXPECT_FALSE(first_.Read("step_9_token", slots).ok());
  EXPECT_THAT(first_.DescribeOtherUsers(), HasSubstr("/step_9_token belongs to user 64123"));
  EXPECT_FALSE(first_.Write("step_9_token", "state", 5).ok());
  // A link of the other user, or a file of theirs in a directory of this user, is not loaded
  // either.
  ASSERT_EQ(chown(planted.c_str(), geteuid(), -1), 0);
  ASSERT_EQ(chown(File("step_9_token", "rank-0").c_str(), 64123, -1), 0);
  EXPECT_EQ(first_.Read("step_9_token", slots).code(), StatusCode::kPermissionDenied);
  fs::create_directory_symlink("step_9_token", path_ + "/step_11_token");
  ASSERT_EQ(lchown((path_ + "/step_11_token").c_str(), 64123, -1), 0);
  EXPECT_FALSE(second_.Read("step_11_token", slots).ok());
  EXPECT_OK(second_.Read("step_9_token", slots));
}

// Fault (checkpoint): The name of a spilled state's file claims more bytes than the file has -> No
// more memory is reserved than the file has bytes
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
  EXPECT_THAT(Complete(), ElementsAre(3, 2));
  EXPECT_FALSE(fs::exists(path_ + "/step_1_half"));
  EXPECT_TRUE(fs::exists(path_ + "/step_4_half"));
  EXPECT_TRUE(fs::exists(path_ + "/somebody's"));
}

// After training went back, the steps being written are lower than those written before.
TEST_F(SpillDirectoryTest, WhatIsRecentStaysThoughItsStepIsLow) {
  WriteBoth(7);
  WriteBoth(8);
  ASSERT_OK(first_.Write("step_2_recent", "state", 5));
  ASSERT_OK(first_.Write("step_2_old", "state", 5));
  first_.RemoveOld({"recent"});
  EXPECT_TRUE(fs::exists(path_ + "/step_2_recent"));
  EXPECT_FALSE(fs::exists(path_ + "/step_2_old"));
}

// Fault (checkpoint): Incomplete states are left in the directory that states are spilled to ->
// Only those of the last few saves are kept
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

constexpr absl::Duration kLong = absl::Minutes(1);

TEST(BoundedCallTest, OneThatEndsInTimeIsAnswered) {
  BoundedCall calls(kLong);
  const auto answer = calls.Make([] { return Result<std::string>("answer"); });
  ASSERT_OK(answer);
  EXPECT_EQ(*answer, "answer");
  EXPECT_THAT(calls.Make([]() -> Result<std::string> { return NotFoundError("none"); }),
              StatusIs(StatusCode::kNotFound));
  EXPECT_FALSE(calls.is_late());
}

TEST(BoundedCallTest, OneThatHangsIsNotAwaited_NorThoseBehindItUntilOneEndsInTime) {
  absl::Notification back;
  // Only the call that hangs takes longer than this.
  BoundedCall calls(absl::Milliseconds(200));
  EXPECT_THAT(calls.Make([&]() -> Result<std::string> {
    EXPECT_TRUE(back.WaitForNotificationWithTimeout(kLong));
    return std::string("late");
  }),
              StatusIs(StatusCode::kDeadlineExceeded));
  bool is_called = false;
  const auto call = [&]() -> Result<std::string> {
    is_called = true;
    return std::string("again");
  };
  EXPECT_THAT(calls.Make(call), StatusIs(StatusCode::kDeadlineExceeded));
  EXPECT_FALSE(is_called);
  EXPECT_TRUE(calls.is_late());
  back.Notify();
  Result<std::string> answer = calls.Make(call);
  for (const absl::Time until = absl::Now() + kLong; !answer.ok() && absl::Now() < until;) {
    answer = calls.Make(call);
  }
  ASSERT_OK(answer);
  EXPECT_EQ(*answer, "again");
  EXPECT_FALSE(calls.is_late());
}

}  // namespace

}  // namespace cadre::memory
