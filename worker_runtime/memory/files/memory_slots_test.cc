#include "worker_runtime/memory/files/memory_slots.h"

#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"

namespace cadre::memory {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class MemorySlotsTest : public ::testing::Test {
 protected:
  MemorySlotsTest() {
    std::string pattern = ::testing::TempDir() + "/memory_slots_XXXXXX";
    EXPECT_NE(mkdtemp(&pattern[0]), nullptr);
    path_ = pattern;
  }
  ~MemorySlotsTest() override { std::filesystem::remove_all(path_); }

  static void Save(MemorySlots& slots, int64_t step, const std::string& state) {
    const auto room = slots.Begin(state.size());
    ASSERT_OK(room);
    std::memcpy(*room, state.data(), state.size());
    ASSERT_OK(slots.Commit(step, 2, 4));
  }
  static std::vector<int64_t> Steps(const MemorySlots& slots) {
    std::vector<int64_t> steps;
    for (const SavedStep& saved : slots.Complete()) steps.push_back(saved.step);
    return steps;
  }
  static std::string StateOf(MemorySlots& slots, int64_t step) {
    for (const SavedStep& saved : slots.Complete()) {
      if (saved.step != step) continue;
      const auto read = MapState(slots.Path(saved.slot), saved.bytes);
      EXPECT_OK(read);
      return read.ok() ? std::string(read->data() + kStateOffset, saved.bytes) : "";
    }
    return "none";
  }

  std::string path_;
};

TEST_F(MemorySlotsTest, TheNewestStay) {
  MemorySlots slots(path_, "rank-0", 2);
  EXPECT_THAT(slots.Complete(), ElementsAre());
  for (int64_t step = 1; step <= 5; ++step) Save(slots, step, "state " + std::to_string(step));
  EXPECT_THAT(Steps(slots), UnorderedElementsAre(4, 5));
  EXPECT_EQ(StateOf(slots, 4), "state 4");
  EXPECT_EQ(StateOf(slots, 5), "state 5");
}

TEST_F(MemorySlotsTest, TheNextProcessFindsThem) {
  {
    MemorySlots slots(path_, "rank-0", 2);
    Save(slots, 7, "seven");
  }
  MemorySlots slots(path_, "rank-0", 2);
  ASSERT_THAT(Steps(slots), ElementsAre(7));
  EXPECT_EQ(slots.Complete()[0].world_size, 4);
  EXPECT_EQ(slots.Complete()[0].generation, 2);
  EXPECT_EQ(StateOf(slots, 7), "seven");
  Save(slots, 8, "eight");
  EXPECT_THAT(Steps(slots), UnorderedElementsAre(7, 8));
}

TEST_F(MemorySlotsTest, WhatIsNotCommittedIsNeverSeen) {
  MemorySlots slots(path_, "rank-0", 2);
  Save(slots, 1, "one");
  Save(slots, 2, "two");
  ASSERT_OK(slots.Begin(3));
  EXPECT_THAT(Steps(slots), ElementsAre(2));
  MemorySlots next(path_, "rank-0", 2);
  EXPECT_EQ(StateOf(next, 2), "two");
  EXPECT_THAT(next.Commit(3, 2, 4), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(MemorySlotsTest, AStepThatComesAgainTakesThePlaceOfLaterOnes) {
  MemorySlots slots(path_, "rank-0", 3);
  for (const int64_t step : {5, 6, 7}) Save(slots, step, "first");
  Save(slots, 6, "again");
  EXPECT_THAT(Steps(slots), ElementsAre(6));
  EXPECT_EQ(StateOf(slots, 6), "again");
}

TEST_F(MemorySlotsTest, Forgets) {
  MemorySlots slots(path_, "rank-0", 3);
  for (const int64_t step : {5, 6, 7}) Save(slots, step, "state");
  ASSERT_OK(slots.DropAbove(5));
  EXPECT_THAT(Steps(slots), ElementsAre(5));
}

TEST_F(MemorySlotsTest, AStateThatDoesNotFitLeavesTheOthers) {
  MemorySlots slots(path_, "rank-0", 2);
  Save(slots, 1, "one");
  Save(slots, 2, "two");
  EXPECT_FALSE(slots.Begin(size_t{1} << 60).ok());
  EXPECT_THAT(Steps(slots), UnorderedElementsAre(1, 2));
}

TEST_F(MemorySlotsTest, AFileThatIsNoneOfOursCountsAsEmpty) {
  std::ofstream(path_ + "/rank-0.0") << "something else";
  MemorySlots slots(path_, "rank-0", 1);
  EXPECT_THAT(slots.Complete(), ElementsAre());
  Save(slots, 1, "one");
  EXPECT_EQ(StateOf(slots, 1), "one");
}

TEST_F(MemorySlotsTest, AReservedSlotStaysUntilItIsFree) {
  MemorySlots slots(path_, "rank-0", 3);
  Save(slots, 1, "one");
  slots.Reserve(slots.Find(1, 2)->slot);
  for (int64_t step = 2; step <= 6; ++step) Save(slots, step, "later");
  EXPECT_THAT(Steps(slots), UnorderedElementsAre(1, 5, 6));
  EXPECT_EQ(StateOf(slots, 1), "one");
  slots.Reserve(std::nullopt);
  Save(slots, 7, "later");
  EXPECT_THAT(Steps(slots), UnorderedElementsAre(5, 6, 7));
}

TEST_F(MemorySlotsTest, AFileThatWasCutShortIsDataLoss) {
  MemorySlots slots(path_, "rank-0", 1);
  Save(slots, 1, std::string(100000, 'x'));
  const std::string file = path_ + "/rank-0.0";
  std::filesystem::resize_file(file, 5000);
  EXPECT_THAT(MapState(file, 100000), StatusIs(absl::StatusCode::kDataLoss));
}

class MappedFileTest : public ::testing::Test {
 protected:
  MappedFileTest() {
    std::string pattern = "/dev/shm/mapped_file_test_XXXXXX";
    EXPECT_NE(mkdtemp(&pattern[0]), nullptr);
    path_ = pattern;
  }
  ~MappedFileTest() override { std::filesystem::remove_all(path_); }

  std::string path_;
};

TEST_F(MappedFileTest, WhatIsWrittenIsReadFromAnotherMapping) {
  const auto written = MappedFile::Writable(path_ + "/file", 10000);
  ASSERT_OK(written);
  std::memcpy(written->data(), "state", 6);
  const auto read = MappedFile::Readable(path_ + "/file");
  ASSERT_OK(read);
  EXPECT_EQ(read->size(), 10000);
  EXPECT_STREQ(read->data(), "state");
}

TEST_F(MappedFileTest, AFileThatIsLongEnoughStays) {
  ASSERT_OK(MappedFile::Writable(path_ + "/file", 10000));
  const auto again = MappedFile::Writable(path_ + "/file", 10);
  ASSERT_OK(again);
  EXPECT_EQ(again->size(), 10000);
}

TEST_F(MappedFileTest, MoreThanThereIsMemory_SaysHowMuchIsFreeAndGivesAllBack) {
  ASSERT_OK(MappedFile::Writable(path_ + "/file", 10000));
  const auto free = std::filesystem::space(path_).available;
  const auto written = MappedFile::Writable(path_ + "/file", size_t{1} << 50);
  EXPECT_THAT(written, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("bytes are free")));
  EXPECT_EQ(std::filesystem::file_size(path_ + "/file"), 10000);
  EXPECT_GT(std::filesystem::space(path_).available, free / 2);
}

TEST_F(MappedFileTest, WhatIsMissing) {
  EXPECT_THAT(MappedFile::Readable(path_ + "/none"), StatusIs(absl::StatusCode::kNotFound));
}

class RankFilesTest : public ::testing::Test {
 protected:
  RankFilesTest() {
    std::string pattern = ::testing::TempDir() + "/rank_files_XXXXXX";
    EXPECT_NE(mkdtemp(&pattern[0]), nullptr);
    path_ = pattern;
  }
  ~RankFilesTest() override { std::filesystem::remove_all(path_); }

  void Save(const std::string& name, int64_t step, uint64_t generation = 1) {
    MemorySlots slots(path_, name, 2);
    ASSERT_OK(slots.Begin(10));
    ASSERT_OK(slots.Commit(step, generation, 4));
  }
  // Returns "RANK@STEP" of each file, followed by "copy" if it is one.
  std::vector<std::string> Complete() const {
    std::vector<std::string> whole;
    for (const RankFile& file : RankFiles(path_)) {
      whole.push_back(absl::StrCat(file.rank, "@", file.label.step, file.is_copy ? " copy" : ""));
    }
    return whole;
  }

  std::string path_;
};

TEST_F(RankFilesTest, AllRanksStatesAreFound) {
  EXPECT_THAT(Complete(), ElementsAre());
  Save(OwnName(0), 3);
  Save(OwnName(0), 4);
  Save(OwnName(12), 4);
  Save(CopyName(5), 3);
  MemorySlots half(path_, OwnName(1), 2);
  ASSERT_OK(half.Begin(10));
  for (const char* other : {"replicated.0", "rank-.0", "rank-1", "rank-x.0", "rank-2.0.tmp"}) {
    std::ofstream(absl::StrCat(path_, "/", other)) << "something";
  }
  EXPECT_THAT(Complete(), ElementsAre("5@3 copy", "0@3", "0@4", "12@4"));
}

TEST_F(RankFilesTest, WhatIsNewerOrOfAnotherGenerationIsForgotten) {
  Save(OwnName(0), 3);
  Save(OwnName(0), 4, 2);
  Save(OwnName(1), 4, 1);
  Save(CopyName(5), 4, 2);
  Save(CopyName(5), 5, 2);
  ASSERT_OK(RollBack(path_, 4, 2));
  EXPECT_THAT(Complete(), ElementsAre("5@4 copy", "0@3", "0@4"));
}

TEST_F(RankFilesTest, RanksThatAreElsewhereAreRemoved) {
  Save(OwnName(0), 3);
  Save(OwnName(1), 3);
  Save(CopyName(0), 3);
  Save(CopyName(1), 3);
  std::ofstream(path_ + "/replicated.0") << "something";
  RemoveOthers(path_, [](int rank, bool is_copy) { return is_copy == (rank == 1); });
  EXPECT_THAT(Complete(), ElementsAre("1@3 copy", "0@3"));
  EXPECT_TRUE(std::filesystem::exists(path_ + "/replicated.0"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/rank-1.0"));
}

}  // namespace

}  // namespace cadre::memory
