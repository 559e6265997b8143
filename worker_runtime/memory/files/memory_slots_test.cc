#include "worker_runtime/memory/files/memory_slots.h"

#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/status_matchers.h"

namespace cadre::memory {
namespace {

using ::testing::ElementsAre;
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
    for (const SavedStep& saved : slots.Whole()) steps.push_back(saved.step);
    return steps;
  }
  static std::string StateOf(MemorySlots& slots, int64_t step) {
    for (const SavedStep& saved : slots.Whole()) {
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
  EXPECT_THAT(slots.Whole(), ElementsAre());
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
  EXPECT_EQ(slots.Whole()[0].world_size, 4);
  EXPECT_EQ(slots.Whole()[0].generation, 2);
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
  EXPECT_THAT(slots.Whole(), ElementsAre());
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

}  // namespace
}  // namespace cadre::memory
