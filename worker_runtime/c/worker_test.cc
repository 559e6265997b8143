#include <stdlib.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "cadre.h"
#include "worker_runtime/c/borrowed_worker.h"
#include "worker_runtime/c/handles.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::c {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kLongMs = 60000;

// Records some of a worker's calls, and throws in others.
class TellTaleWorker : public store::GroupWorker {
 public:
  explicit TellTaleWorker(Worker& worker) : GroupWorker(&worker, "tale", worker.place()) {}

  Status Barrier(std::string_view, std::chrono::nanoseconds) override { throw std::bad_alloc(); }
  bool MoreNodesWait() const override { throw "no exception of the standard library's"; }
  void ReportProgress(int64_t step, double samples_per_second, double loss) override {
    EXPECT_EQ(samples_per_second, 12.5);
    EXPECT_EQ(loss, 0.25);
    reported_step = step;
  }

  int64_t reported_step = -1;
};

TEST(CWorkerTest, NotStartedAsAWorker_SaysSo) {
  unsetenv("CADRE_AGENT");
  int marker = 0;
  auto* worker = reinterpret_cast<cadre_worker*>(&marker);
  EXPECT_EQ(cadre_worker_connect(&worker), CADRE_FAILED_PRECONDITION);
  EXPECT_THAT(cadre_last_error(), HasSubstr("cadre run"));
  EXPECT_EQ(worker, nullptr);
  EXPECT_EQ(cadre_worker_connect(nullptr), CADRE_INVALID_ARGUMENT);
}

TEST(CWorkerTest, WhoSaysItsRankItself) {
  cadre_worker* worker = nullptr;
  ASSERT_EQ(cadre_worker_connect_at(0, 1, "127.0.0.1:1", kLongMs, &worker), CADRE_OK)
      << cadre_last_error();
  EXPECT_EQ(cadre_worker_rank(worker), 0);
  EXPECT_EQ(cadre_worker_world_size(worker), 1);
  cadre_worker_free(worker);
  EXPECT_EQ(cadre_worker_connect_at(0, 1, "nowhere", kLongMs, &worker), CADRE_INVALID_ARGUMENT);
  EXPECT_THAT(cadre_last_error(), HasSubstr("HOST:PORT"));
  EXPECT_EQ(worker, nullptr);
  EXPECT_EQ(cadre_worker_connect_at(2, 2, "h:1", kLongMs, &worker), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_worker_connect_at(0, 1, "h:1", -1, &worker), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_worker_connect_at(0, 1, nullptr, kLongMs, &worker), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_worker_connect_at(0, 1, "h:1", kLongMs, nullptr), CADRE_INVALID_ARGUMENT);
}

TEST(CWorkerTest, Place) {
  testing::InProcessWorkers workers(5, 2);
  const cadre_worker worker = Borrowed(workers.worker(3));
  EXPECT_EQ(cadre_worker_rank(&worker), 3);
  EXPECT_EQ(cadre_worker_world_size(&worker), 5);
  EXPECT_EQ(cadre_worker_local_rank(&worker), 1);
  EXPECT_EQ(cadre_worker_node_rank(&worker), 1);
  EXPECT_EQ(cadre_worker_restart_count(&worker), 0);
  EXPECT_EQ(cadre_worker_generation(&worker), 1);
  EXPECT_STREQ(cadre_worker_job(&worker), "in_process");
}

TEST(CWorkerTest, ANullWorkerHasNoPlace) {
  EXPECT_EQ(cadre_worker_rank(nullptr), -1);
  EXPECT_EQ(cadre_worker_world_size(nullptr), -1);
  EXPECT_EQ(cadre_worker_local_rank(nullptr), -1);
  EXPECT_EQ(cadre_worker_node_rank(nullptr), -1);
  EXPECT_EQ(cadre_worker_restart_count(nullptr), -1);
  EXPECT_EQ(cadre_worker_generation(nullptr), -1);
  EXPECT_STREQ(cadre_worker_job(nullptr), "");
  EXPECT_THAT(cadre_last_error(), HasSubstr("worker is NULL"));
  cadre_worker_free(nullptr);
}

TEST(CWorkerTest, BarrierWaitsForAll) {
  testing::InProcessWorkers workers(3);
  std::atomic<int> came{0};
  workers.Run([&](Worker& one) {
    cadre_worker worker = Borrowed(one);
    ++came;
    EXPECT_EQ(cadre_worker_barrier(&worker, "all", kLongMs), CADRE_OK);
    EXPECT_EQ(came, 3);
  });
}

TEST(CWorkerTest, BarrierErrors) {
  testing::InProcessWorkers workers(2);
  cadre_worker worker = Borrowed(workers.worker(0));
  EXPECT_EQ(cadre_worker_barrier(&worker, "alone", 1), CADRE_DEADLINE_EXCEEDED);
  EXPECT_THAT(cadre_last_error(), HasSubstr("alone"));
  EXPECT_EQ(cadre_worker_barrier(nullptr, "alone", 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_worker_barrier(&worker, nullptr, 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_worker_barrier(&worker, "alone", -1), CADRE_INVALID_ARGUMENT);
  workers.EndGeneration();
  EXPECT_EQ(cadre_worker_barrier(&worker, "alone", kLongMs), CADRE_ABORTED);
  EXPECT_THAT(cadre_last_error(), HasSubstr("generation"));
}

TEST(CWorkerTest, ProgressGoesToTheLauncher) {
  testing::InProcessWorkers workers(1);
  auto told = std::make_unique<TellTaleWorker>(workers.worker(0));
  const TellTaleWorker& tale = *told;
  cadre_worker worker{std::move(told)};
  EXPECT_EQ(cadre_worker_report_progress(&worker, 418, 12.5, 0.25), CADRE_OK);
  EXPECT_EQ(tale.reported_step, 418);
  EXPECT_EQ(cadre_worker_report_progress(nullptr, 1, 1, 1), CADRE_INVALID_ARGUMENT);
}

TEST(CWorkerTest, CheckpointWantedIsOneAnswerForAll) {
  testing::InProcessWorkers workers(2);
  workers.Run([&](Worker& one) {
    cadre_worker worker = Borrowed(one);
    int wanted = 7;
    EXPECT_EQ(cadre_checkpoint_wanted(&worker, kLongMs, &wanted), CADRE_OK) << cadre_last_error();
    EXPECT_EQ(wanted, 0);
  });
}

TEST(CWorkerTest, CheckpointWantedErrors) {
  testing::InProcessWorkers workers(2);
  cadre_worker worker = Borrowed(workers.worker(1));
  int wanted = 7;
  EXPECT_EQ(cadre_checkpoint_wanted(&worker, 1, &wanted), CADRE_DEADLINE_EXCEEDED);
  EXPECT_EQ(cadre_checkpoint_wanted(nullptr, 1, &wanted), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_checkpoint_wanted(&worker, 1, nullptr), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_checkpoint_wanted(&worker, -1, &wanted), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(wanted, 7);
}

TEST(CWorkerTest, WhatTheRuntimeThrowsStaysInside) {
  testing::InProcessWorkers workers(1);
  cadre_worker worker{std::make_unique<TellTaleWorker>(workers.worker(0))};
  EXPECT_EQ(cadre_worker_barrier(&worker, "all", kLongMs), CADRE_RESOURCE_EXHAUSTED);
  int wanted = 7;
  EXPECT_EQ(cadre_checkpoint_wanted(&worker, kLongMs, &wanted), CADRE_INTERNAL);
}

class CStoreTest : public ::testing::Test {
 protected:
  // The key's value; empty for an error.
  std::string Get(const char* key) {
    char value[CADRE_MAX_VALUE_BYTES + 1];
    size_t size = 0;
    EXPECT_EQ(cadre_store_get(&worker_, key, kLongMs, value, sizeof value, &size), CADRE_OK)
        << cadre_last_error();
    return std::string(value, size);
  }

  testing::InProcessWorkers workers_{1};
  cadre_worker worker_ = Borrowed(workers_.worker(0));
};

TEST_F(CStoreTest, ValuesAreBytes) {
  ASSERT_EQ(cadre_store_set(&worker_, "k", "a\0b", 3), CADRE_OK);
  EXPECT_EQ(Get("k"), std::string("a\0b", 3));
  ASSERT_EQ(cadre_store_set(&worker_, "k", nullptr, 0), CADRE_OK);
  EXPECT_EQ(Get("k"), "");
  const std::string largest(CADRE_MAX_VALUE_BYTES, 'x');
  ASSERT_EQ(cadre_store_set(&worker_, "k", largest.data(), largest.size()), CADRE_OK);
  EXPECT_EQ(Get("k"), largest);
}

TEST_F(CStoreTest, ANulFollowsWhereThereIsRoom) {
  ASSERT_EQ(cadre_store_set(&worker_, "k", "abc", 3), CADRE_OK);
  char value[] = "......";
  size_t size = 0;
  ASSERT_EQ(cadre_store_get(&worker_, "k", kLongMs, value, 4, &size), CADRE_OK);
  EXPECT_EQ(memcmp(value, "abc\0..", 6), 0);
  memset(value, '.', 6);
  ASSERT_EQ(cadre_store_get(&worker_, "k", kLongMs, value, 3, &size), CADRE_OK);
  EXPECT_STREQ(value, "abc...");
  EXPECT_EQ(size, 3u);
}

TEST_F(CStoreTest, TooLittleRoom_SaysHowMuchItTakes) {
  ASSERT_EQ(cadre_store_set(&worker_, "k", "abc", 3), CADRE_OK);
  char value[] = "..";
  size_t size = 0;
  EXPECT_EQ(cadre_store_get(&worker_, "k", kLongMs, value, 2, &size), CADRE_OUT_OF_RANGE);
  EXPECT_THAT(cadre_last_error(), AllOf(HasSubstr("\"k\""), HasSubstr("3 bytes")));
  EXPECT_EQ(size, 3u);
  EXPECT_STREQ(value, "..");
  EXPECT_EQ(cadre_store_get(&worker_, "k", kLongMs, nullptr, 0, &size), CADRE_OUT_OF_RANGE);
}

TEST_F(CStoreTest, GetErrors) {
  char value[8];
  size_t size = 7;
  EXPECT_EQ(cadre_store_get(&worker_, "no", 1, value, 8, &size), CADRE_DEADLINE_EXCEEDED);
  EXPECT_EQ(cadre_store_get(&worker_, "no", 0, value, 8, &size), CADRE_NOT_FOUND);
  EXPECT_EQ(cadre_store_get(&worker_, "k", -1, value, 8, &size), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_get(nullptr, "k", 1, value, 8, &size), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_get(&worker_, nullptr, 1, value, 8, &size), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_get(&worker_, "k", 1, nullptr, 8, &size), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_get(&worker_, "k", 1, value, 8, nullptr), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(size, 7u);
}

TEST_F(CStoreTest, SetErrors) {
  const std::string large(CADRE_MAX_VALUE_BYTES + 1, 'x'), long_key(257, 'k');
  EXPECT_EQ(cadre_store_set(nullptr, "k", "v", 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_set(&worker_, nullptr, "v", 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_set(&worker_, "k", nullptr, 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_set(&worker_, long_key.c_str(), "v", 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_set(&worker_, "k", large.data(), large.size()), CADRE_INVALID_ARGUMENT);
  EXPECT_THAT(cadre_last_error(), HasSubstr("65536"));
}

TEST_F(CStoreTest, Add) {
  int64_t sum = 0;
  EXPECT_EQ(cadre_store_add(&worker_, "n", 40, &sum), CADRE_OK);
  EXPECT_EQ(sum, 40);
  EXPECT_EQ(cadre_store_add(&worker_, "n", -50, nullptr), CADRE_OK);
  EXPECT_EQ(Get("n"), "-10");
  ASSERT_EQ(cadre_store_set(&worker_, "word", "x", 1), CADRE_OK);
  EXPECT_EQ(cadre_store_add(&worker_, "word", 1, &sum), CADRE_FAILED_PRECONDITION);
  EXPECT_EQ(sum, 40);
  EXPECT_EQ(cadre_store_add(nullptr, "n", 1, &sum), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_add(&worker_, nullptr, 1, &sum), CADRE_INVALID_ARGUMENT);
}

TEST_F(CStoreTest, CompareAndSet) {
  EXPECT_EQ(cadre_store_compare_and_set(&worker_, "k", nullptr, 0, "a", 1), CADRE_OK);
  EXPECT_EQ(cadre_store_compare_and_set(&worker_, "k", "b", 1, "c", 1), CADRE_FAILED_PRECONDITION);
  EXPECT_EQ(cadre_store_compare_and_set(&worker_, "k", "a", 1, "c", 1), CADRE_OK);
  EXPECT_EQ(Get("k"), "c");
  EXPECT_EQ(cadre_store_compare_and_set(nullptr, "k", "c", 1, "d", 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_compare_and_set(&worker_, nullptr, "c", 1, "d", 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_compare_and_set(&worker_, "k", nullptr, 1, "d", 1), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_compare_and_set(&worker_, "k", "c", 1, nullptr, 1), CADRE_INVALID_ARGUMENT);
}

TEST_F(CStoreTest, Delete) {
  ASSERT_EQ(cadre_store_set(&worker_, "k", "v", 1), CADRE_OK);
  EXPECT_EQ(cadre_store_delete(&worker_, "k"), CADRE_OK);
  EXPECT_EQ(cadre_store_delete(&worker_, "k"), CADRE_OK) << "it is gone either way";
  size_t size = 0;
  EXPECT_EQ(cadre_store_get(&worker_, "k", 1, nullptr, 0, &size), CADRE_DEADLINE_EXCEEDED);
  EXPECT_EQ(cadre_store_delete(nullptr, "k"), CADRE_INVALID_ARGUMENT);
  EXPECT_EQ(cadre_store_delete(&worker_, nullptr), CADRE_INVALID_ARGUMENT);
}

TEST_F(CStoreTest, AGenerationThatIsOverIsAborted) {
  workers_.EndGeneration();
  EXPECT_EQ(cadre_store_set(&worker_, "k", "v", 1), CADRE_ABORTED);
  EXPECT_THAT(cadre_last_error(), HasSubstr("generation 1 is over"));
}

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
  // On one node there is no partner to wait for.
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
  // The directory is written in the background, so a later call returns the error.
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
