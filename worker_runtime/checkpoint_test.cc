#include "cadre/checkpoint.h"

#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/status_matchers.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    std::string pattern = ::testing::TempDir() + "/checkpoint_XXXXXX";
    EXPECT_NE(mkdtemp(&pattern[0]), nullptr);
    path_ = pattern;
  }
  ~CheckpointTest() override { std::filesystem::remove_all(path_); }

  static Status Write(const std::string& path) { return checkpoint::WriteAndSync(path, "weights"); }

  std::string path_;
  testing::InProcessWorkers workers_{3};
};

TEST_F(CheckpointTest, RankZeroSavesAndAllLoad) {
  const CheckpointDirectory directory(path_);
  std::atomic<int> writers{0};
  workers_.Run([&](Worker& worker) {
    const auto none = LoadNewest(worker, directory, kLong);
    ASSERT_OK(none);
    EXPECT_FALSE(none->checkpoint.has_value());
    for (const int64_t step : {10, 20, 30}) {
      EXPECT_OK(SaveCheckpoint(
          worker, directory, step,
          [&](const std::string& path) {
            ++writers;
            return Write(path);
          },
          kLong));
      const auto newest = LoadNewest(worker, directory, kLong);
      ASSERT_OK(newest);
      EXPECT_EQ(newest->checkpoint->step, step);
    }
  });
  EXPECT_EQ(writers, 3);
}

TEST_F(CheckpointTest, NobodyIsAskedWhereNoNodesWait) {
  workers_.Run([&](Worker& worker) {
    const auto wanted = CheckpointWanted(worker, kLong);
    ASSERT_OK(wanted);
    EXPECT_FALSE(*wanted);
  });
}

TEST_F(CheckpointTest, AllHearThatTheSaveFailed) {
  const CheckpointDirectory directory(path_);
  workers_.Run([&](Worker& worker) {
    const auto fails = [](const std::string&) { return InternalError("no pickle"); };
    EXPECT_THAT(SaveCheckpoint(worker, directory, 1, fails, kLong),
                StatusIs(StatusCode::kInternal, HasSubstr("no pickle")));
    EXPECT_OK(SaveCheckpoint(worker, directory, 2, Write, kLong));
  });
}

TEST_F(CheckpointTest, ARankInAnotherStepHearsOfIt) {
  const CheckpointDirectory directory(path_);
  workers_.Run([&](Worker& worker) {
    const bool other = worker.rank() == 2;
    const Status saved = SaveCheckpoint(worker, directory, other ? 6 : 5, Write, kLong);
    EXPECT_EQ(saved.code(), other ? StatusCode::kInvalidArgument : StatusCode::kOk);
    EXPECT_THAT(saved.message(),
                HasSubstr(other ? "rank 0 saved step 5 and rank 2 is in step 6" : ""));
  });
}

TEST_F(CheckpointTest, AllLoadWhatRankZeroChoseAndHearWhy) {
  const CheckpointDirectory directory(path_);
  ASSERT_OK(directory.Save(1, 1, Write, [] { return OkStatus(); }));
  ASSERT_OK(directory.Save(2, 1, Write, [] { return OkStatus(); }));
  std::filesystem::resize_file(path_ + "/step_2_g1/data", 1);
  workers_.Run([&](Worker& worker) {
    const auto newest = LoadNewest(worker, directory, kLong);
    ASSERT_OK(newest);
    EXPECT_EQ(newest->checkpoint->step, 1);
    EXPECT_THAT(newest->warning, AllOf(HasSubstr("step_2_g1 is damaged"), HasSubstr("step 1")));
  });
}

TEST_F(CheckpointTest, ANewerOneThatAppearsMeanwhileIsNotMixedIn) {
  const CheckpointDirectory directory(path_);
  ASSERT_OK(directory.Save(1, 1, Write, [] { return OkStatus(); }));
  const auto load = [&](int rank) {
    const auto newest = LoadNewest(workers_.worker(rank), directory, kLong);
    ASSERT_OK(newest);
    EXPECT_EQ(newest->checkpoint->step, 1) << rank;
  };
  std::thread first([&] { load(0); });
  std::thread second([&] { load(1); });
  // Rank 0 has chosen, and rank 2 looks only after a newer one has come.
  EXPECT_OK(workers_.worker(2).Get("checkpoint/load/1", kLong));
  EXPECT_OK(directory.Save(2, 1, Write, [] { return OkStatus(); }));
  load(2);
  first.join();
  second.join();
}

TEST_F(CheckpointTest, SaysWhoDoesNotSeeTheDirectory) {
  const CheckpointDirectory shared(path_ + "/shared");
  const CheckpointDirectory own(path_ + "/own");
  ASSERT_OK(shared.Save(1, 1, Write, [] { return OkStatus(); }));
  workers_.Run([&](Worker& worker) {
    if (worker.rank() == 2) {
      EXPECT_THAT(LoadNewest(worker, own, kLong),
                  StatusIs(StatusCode::kNotFound,
                           AllOf(HasSubstr("rank 2"), HasSubstr("step_1_g1"), HasSubstr("share"))));
    } else {
      EXPECT_OK(LoadNewest(worker, shared, kLong));
    }
  });
}

TEST_F(CheckpointTest, AnOlderGenerationCannotCommit) {
  const CheckpointDirectory directory(path_);
  ASSERT_OK(directory.Save(1, 1, Write, [] { return OkStatus(); }));
  const auto write_while_the_job_moves_on = [this](const std::string& path) {
    workers_.EndGeneration();
    return Write(path);
  };
  workers_.Run([&](Worker& worker) {
    EXPECT_THAT(SaveCheckpoint(worker, directory, 2, write_while_the_job_moves_on, kLong),
                StatusIs(StatusCode::kAborted, HasSubstr("current one is 2")));
  });
  EXPECT_EQ(directory.FindNewest()->checkpoint->step, 1);
  EXPECT_FALSE(std::filesystem::exists(path_ + "/step_2_g1"));
}

}  // namespace
}  // namespace cadre
