#include "worker_runtime/memory/files/rank_files.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "worker_runtime/memory/files/memory_slots.h"

namespace cadre::memory {
namespace {

using ::testing::ElementsAre;

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
  // "RANK@STEP", with "copy" behind where it is one.
  std::vector<std::string> Whole() const {
    std::vector<std::string> whole;
    for (const RankFile& file : RankFiles(path_)) {
      whole.push_back(absl::StrCat(file.rank, "@", file.label.step, file.is_copy ? " copy" : ""));
    }
    return whole;
  }

  std::string path_;
};

TEST_F(RankFilesTest, AllRanksStatesAreFound) {
  EXPECT_THAT(Whole(), ElementsAre());
  Save(OwnName(0), 3);
  Save(OwnName(0), 4);
  Save(OwnName(12), 4);
  Save(CopyName(5), 3);
  MemorySlots half(path_, OwnName(1), 2);
  ASSERT_OK(half.Begin(10));
  for (const char* other : {"replicated.0", "rank-.0", "rank-1", "rank-x.0", "rank-2.0.tmp"}) {
    std::ofstream(absl::StrCat(path_, "/", other)) << "something";
  }
  EXPECT_THAT(Whole(), ElementsAre("5@3 copy", "0@3", "0@4", "12@4"));
}

TEST_F(RankFilesTest, WhatIsNewerOrOfAnotherGenerationIsForgotten) {
  Save(OwnName(0), 3);
  Save(OwnName(0), 4, 2);
  Save(OwnName(1), 4, 1);
  Save(CopyName(5), 4, 2);
  Save(CopyName(5), 5, 2);
  ASSERT_OK(GoBack(path_, 4, 2));
  EXPECT_THAT(Whole(), ElementsAre("5@4 copy", "0@3", "0@4"));
}

TEST_F(RankFilesTest, RanksThatAreElsewhereAreRemoved) {
  Save(OwnName(0), 3);
  Save(OwnName(1), 3);
  Save(CopyName(0), 3);
  Save(CopyName(1), 3);
  std::ofstream(path_ + "/replicated.0") << "something";
  RemoveOthers(path_, [](int rank, bool is_copy) { return is_copy == (rank == 1); });
  EXPECT_THAT(Whole(), ElementsAre("1@3 copy", "0@3"));
  EXPECT_TRUE(std::filesystem::exists(path_ + "/replicated.0"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/rank-1.0"));
}

}  // namespace
}  // namespace cadre::memory
