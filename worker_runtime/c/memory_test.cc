#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "cadre.h"
#include "worker_runtime/c/borrowed_worker.h"
#include "worker_runtime/c/handles.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::c {
namespace {

constexpr int64_t kLongMs = 60000;

class CMemoryTest : public ::testing::Test {
 protected:
  CMemoryTest() {
    std::string pattern = ::testing::TempDir() + "/c_memory_XXXXXX";
    EXPECT_NE(mkdtemp(&pattern[0]), nullptr);
    path_ = pattern;
    setenv("CADRE_CHECKPOINT_MEMORY", path_.c_str(), 1);
  }
  ~CMemoryTest() override {
    unsetenv("CADRE_CHECKPOINT_MEMORY");
    std::filesystem::remove_all(path_);
  }

  testing::InProcessWorkers workers_{1};
  cadre_worker worker_ = Borrowed(workers_.worker(0));
  std::string path_;
};

TEST_F(CMemoryTest, WhatWasCommittedIsThereForTheNextProcess) {
  cadre_memory* memory = nullptr;
  ASSERT_EQ(cadre_memory_open(&worker_, 0, kLongMs, &memory), CADRE_OK) << cadre_last_error();
  int64_t step = 0;
  const void* data = nullptr;
  size_t size = 0;
  EXPECT_EQ(cadre_memory_latest(memory, &step, &data, &size), CADRE_NOT_FOUND);
  const void* const parts[] = {"one", nullptr, "two"};
  const size_t sizes[] = {3, 0, 3};
  EXPECT_EQ(cadre_memory_write(memory, parts, sizes, 3), CADRE_OK) << cadre_last_error();
  EXPECT_EQ(cadre_memory_commit(memory, 17), CADRE_OK) << cadre_last_error();
  // Of one node.
  EXPECT_EQ(cadre_memory_wait_for_partner(memory), CADRE_OK) << cadre_last_error();
  EXPECT_EQ(cadre_memory_commit(memory, 18), CADRE_FAILED_PRECONDITION);
  cadre_memory_free(memory);
  ASSERT_EQ(cadre_memory_open(&worker_, 0, kLongMs, &memory), CADRE_OK) << cadre_last_error();
  ASSERT_EQ(cadre_memory_latest(memory, &step, &data, &size), CADRE_OK) << cadre_last_error();
  EXPECT_EQ(step, 17);
  EXPECT_EQ(std::string(static_cast<const char*>(data), size), "onetwo");
  int flags = -1;
  ASSERT_EQ(cadre_memory_saved_as(memory, &flags), CADRE_OK) << cadre_last_error();
  EXPECT_EQ(flags, 0);
  cadre_memory_free(memory);
  ASSERT_EQ(cadre_memory_open(&worker_, CADRE_MEMORY_REPLICATED, kLongMs, &memory), CADRE_OK);
  EXPECT_EQ(cadre_memory_latest(memory, &step, &data, &size), CADRE_FAILED_PRECONDITION);
  EXPECT_THAT(cadre_last_error(), ::testing::HasSubstr("step 17"));
  cadre_memory_free(memory);
}

TEST_F(CMemoryTest, ADirectoryThatIsGoneIsSaidOnceAndStatesAreKept) {
  const std::string directory = path_ + "/spilled";
  cadre_memory* memory = nullptr;
  ASSERT_EQ(cadre_memory_open(&worker_, CADRE_MEMORY_REPLICATED, kLongMs, &memory), CADRE_OK)
      << cadre_last_error();
  ASSERT_EQ(cadre_memory_spill(memory, directory.c_str(), 0), CADRE_OK) << cadre_last_error();
  std::filesystem::remove_all(directory);
  std::ofstream(directory) << "a file in its place";
  const void* const parts[] = {"state"};
  const size_t sizes[] = {5};
  int said = 0;
  int64_t last = 0;
  // It is written behind these calls.
  for (const MonoTime until = MonoNow() + absl::Seconds(30); said == 0 && MonoNow() < until;) {
    ASSERT_EQ(cadre_memory_write(memory, parts, sizes, 1), CADRE_OK) << cadre_last_error();
    ASSERT_EQ(cadre_memory_commit(memory, ++last), CADRE_OK) << cadre_last_error();
    if (cadre_memory_wait_for_partner(memory) != CADRE_OK) ++said;
  }
  ASSERT_EQ(said, 1);
  EXPECT_THAT(cadre_last_error(), ::testing::HasSubstr(directory));
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(cadre_memory_write(memory, parts, sizes, 1), CADRE_OK) << cadre_last_error();
    ASSERT_EQ(cadre_memory_commit(memory, ++last), CADRE_OK) << cadre_last_error();
    ASSERT_EQ(cadre_memory_wait_for_partner(memory), CADRE_OK) << cadre_last_error();
  }
  int64_t step = 0;
  const void* data = nullptr;
  size_t size = 0;
  ASSERT_EQ(cadre_memory_latest(memory, &step, &data, &size), CADRE_OK) << cadre_last_error();
  EXPECT_EQ(step, last);
  cadre_memory_free(memory);
}

TEST_F(CMemoryTest, BadArguments) {
  cadre_memory* memory = nullptr;
  EXPECT_EQ(cadre_memory_open(nullptr, 0, kLongMs, &memory), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_memory_open(&worker_, 0, -1, &memory), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_memory_open(&worker_, 0, kLongMs, nullptr), CADRE_INVALID_ARGUMENT);
  ASSERT_EQ(cadre_memory_open(&worker_, CADRE_MEMORY_REPLICATED, kLongMs, &memory), CADRE_OK)
      << cadre_last_error();
  const void* const parts[] = {nullptr};
  const size_t sizes[] = {3};
  EXPECT_EQ(cadre_memory_write(memory, parts, sizes, 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_memory_write(memory, nullptr, sizes, 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_memory_latest(memory, nullptr, nullptr, nullptr), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_memory_spill(memory, nullptr, 0), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_memory_spill(memory, path_.c_str(), -1), CADRE_INVALID_ARGUMENT);
  EXPECT_NE(cadre_memory_spill(memory, "/proc/none", 0), CADRE_OK);
  EXPECT_EQ(cadre_memory_spill(memory, path_.c_str(), 0), CADRE_OK) << cadre_last_error();
  cadre_memory_free(memory);
  cadre_memory_free(nullptr);
  EXPECT_EQ(cadre_memory_open(&worker_, 4, kLongMs, &memory), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(cadre_memory_wait_for_partner(nullptr), CADRE_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace cadre::c
