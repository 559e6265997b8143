#include "cadre/sharded_checkpoint.h"

#include <atomic>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/file_systems.h"
#include "worker_runtime/checkpoint/sharded_state_for_test.h"
#include "worker_runtime/store/group_worker.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::InProcessWorkers;
using testing::RankValues;

class ShardedCheckpointTest : public testing::ShardsTest {
 protected:
  static std::unique_ptr<ShardedCheckpoint> Open(Worker& worker, const std::string& path,
                                                 std::chrono::nanoseconds timeout = kLong,
                                                 int keep = 2) {
    ShardedCheckpointOptions options;
    options.timeout = timeout;
    options.keep = keep;
    auto opened = ShardedCheckpoint::Open(worker, path, options);
    EXPECT_OK(opened);
    return *std::move(opened);
  }
  static Status Save(ShardedCheckpoint& checkpoint, const Worker& worker, int64_t step) {
    RankValues values(worker.rank(), worker.world_size());
    values.Step(step);
    const Status before = checkpoint.Save(step, values.State());
    const Status status = checkpoint.Wait();
    return before.ok() ? status : before;
  }
  static void SaveAll(int ranks, const std::string& path, int64_t step) {
    InProcessWorkers workers(ranks);
    workers.Run([&](Worker& worker) {
      const auto checkpoint = Open(worker, path);
      EXPECT_OK(Save(*checkpoint, worker, step));
    });
  }
  // Returns 0 if there is no checkpoint.
  static int64_t LatestStep(ShardedCheckpoint& checkpoint, const Worker& worker) {
    const auto latest = checkpoint.Latest();
    EXPECT_OK(latest);
    if (!latest.ok() || !latest->has_value()) return 0;
    EXPECT_EQ((*latest)->warning, "");
    RankValues(worker.rank(), worker.world_size()).ExpectSaved((*latest)->shards);
    return (*latest)->shards.step();
  }
  static void ExpectLatest(int ranks, const std::string& path, int64_t step) {
    InProcessWorkers workers(ranks);
    workers.Run([&](Worker& worker) { EXPECT_EQ(LatestStep(*Open(worker, path), worker), step); });
  }
};

TEST_F(ShardedCheckpointTest, AnyNumberOfRanksLoadsWhatAnyNumberSaved) {
  for (const int saved : {1, 2, 3, 4}) {
    const std::string folder = path() + "/" + std::to_string(saved);
    ExpectLatest(2, folder, 0);
    SaveAll(saved, folder, 7);
    for (const int loaded : {1, 2, 3, 4, 7}) {
      SCOPED_TRACE(std::to_string(saved) + " and " + std::to_string(loaded));
      ExpectLatest(loaded, folder, 7);
    }
  }
}

TEST_F(ShardedCheckpointTest, KeepsTheNewest) {
  InProcessWorkers workers(3);
  workers.Run([&](Worker& worker) {
    const auto checkpoint = Open(worker, path(), kLong, 3);
    for (int64_t step = 1; step <= 5; ++step) {
      EXPECT_OK(Save(*checkpoint, worker, step));
      EXPECT_EQ(LatestStep(*checkpoint, worker), step);
    }
  });
  EXPECT_THAT(Names(), ElementsAre("LATEST", "step_3_g1", "step_4_g1", "step_5_g1"));
}

// Fault (checkpoint): The file system does not answer while ranks write their parts of a checkpoint
// -> Training goes on, and the state of the requested step is saved
TEST_F(ShardedCheckpointTest, GoesOnWhileTheFileSystemStandsStill) {
  const auto disk = HangingFileSystem::Mount();
  if (absl::IsFailedPrecondition(disk.status())) GTEST_SKIP() << disk.status().message();
  ASSERT_OK(disk);
  const std::string folder = (*disk)->path() + "/checkpoints";
  SaveAll(2, folder, 1);
  (*disk)->Hang();
  InProcessWorkers workers(2);
  std::atomic<int> saved{0};
  workers.Run([&](Worker& worker) {
    const auto checkpoint = Open(worker, folder);
    RankValues values(worker.rank(), 2);
    values.Step(2);
    EXPECT_OK(checkpoint->Save(2, values.State()));
    // Training goes on and changes the saved values.
    values.Step(3);
    // No rank may touch the files before this.
    if (++saved == 2) (*disk)->Resume();
    EXPECT_OK(checkpoint->Wait());
    EXPECT_EQ(LatestStep(*checkpoint, worker), 2);
  });
}

// Copies the directory before and after each change that its rank makes in the store.
class Witness : public store::GroupWorker {
 public:
  Witness(Worker& worker, std::string seen, std::string copies)
      : store::GroupWorker(&worker, "seen", worker.place()),
        seen_(std::move(seen)),
        copies_(std::move(copies)) {}

  Status Set(std::string_view key, std::string_view value) override {
    Copy();
    const Status status = GroupWorker::Set(key, value);
    Copy();
    return status;
  }
  Status Delete(std::string_view key) override {
    Copy();
    return GroupWorker::Delete(key);
  }
  int copies() const { return count_; }

 private:
  void Copy() {
    fs::copy(seen_, copies_ + "/" + std::to_string(count_++), fs::copy_options::recursive);
  }

  const std::string seen_, copies_;
  int count_ = 0;
};

// Returns true if there is a folder with all parts but no index of them.
bool HasPartsAlone(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path& one = entry.path();
    if (absl::StartsWith(one.filename().string(), ".tmp_") && fs::exists(one / "part_0") &&
        fs::exists(one / "part_1") && !fs::exists(one / "data")) {
      return true;
    }
  }
  return false;
}

// Fault (checkpoint): A crash happens while ranks write their parts of a checkpoint, before or
// after its index -> The newest complete checkpoint is loaded, and remnants are removed at the next
// save
TEST_F(ShardedCheckpointTest, AfterACrashAtAnyMomentTheFormerOrTheNewOneIsThere) {
  const std::string folder = path() + "/checkpoints", copies = path() + "/copies";
  fs::create_directory(copies);
  SaveAll(2, folder, 1);
  InProcessWorkers workers(2);
  int count = 0;
  workers.Run([&](Worker& worker) {
    if (worker.rank() == 0) {
      Witness witness(worker, folder, copies);
      EXPECT_OK(Save(*Open(witness, folder), witness, 2));
      count = witness.copies();
    } else {
      store::GroupWorker other(&worker, "seen", worker.place());
      EXPECT_OK(Save(*Open(other, folder), other, 2));
    }
  });
  int between = 0, former = 0;
  for (int i = 0; i < count; ++i) {
    const std::string copy = copies + "/" + std::to_string(i);
    between += HasPartsAlone(copy) ? 1 : 0;
    InProcessWorkers restarted(3);
    restarted.Run([&](Worker& worker) {
      const auto checkpoint = Open(worker, copy);
      const int64_t step = LatestStep(*checkpoint, worker);
      EXPECT_TRUE(step == 1 || step == 2) << step;
      if (worker.rank() == 0) former += step == 1 ? 1 : 0;
      // Files that were left behind do not hinder later saves.
      EXPECT_OK(Save(*checkpoint, worker, 3));
      EXPECT_EQ(LatestStep(*checkpoint, worker), 3);
    });
    EXPECT_FALSE(HasPartsAlone(copy));
  }
  EXPECT_GT(between, 0);
  EXPECT_GT(former, between);
  EXPECT_LT(former, count);
}

// Fault (checkpoint): A rank cannot write its part of a checkpoint -> All ranks get the error,
// which names it; the checkpoint before stays, and the next save works
TEST_F(ShardedCheckpointTest, AllHearThatOneCouldNotSave_AndTheFormerStays) {
  SaveAll(2, path(), 1);
  InProcessWorkers workers(2);
  workers.Run([&](Worker& worker) {
    const auto checkpoint = Open(worker, path());
    const RankValues values(worker.rank() == 0 ? 0 : 2, worker.rank() == 0 ? 2 : 3);
    EXPECT_OK(checkpoint->Save(2, values.State()));
    EXPECT_THAT(checkpoint->Wait(),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("rank 2 of 3, and this is rank")));
    EXPECT_OK(checkpoint->Wait());
    EXPECT_EQ(LatestStep(*checkpoint, worker), 1);
    EXPECT_OK(Save(*checkpoint, worker, 3));
    EXPECT_EQ(LatestStep(*checkpoint, worker), 3);
  });
}

TEST_F(ShardedCheckpointTest, OfSeveralErrorsAllHearTheFirst) {
  InProcessWorkers workers(3);
  workers.Run([&](Worker& worker) {
    const auto checkpoint = Open(worker, path());
    const RankValues values(worker.rank(), worker.rank() == 0 ? 3 : 4);
    EXPECT_OK(checkpoint->Save(1, values.State()));
    EXPECT_THAT(checkpoint->Wait(),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("rank 1: the state is one of")));
  });
}

TEST_F(ShardedCheckpointTest, RanksWhoseRangesAreNotTheWhole) {
  InProcessWorkers workers(2);
  workers.Run([&](Worker& worker) {
    const auto checkpoint = Open(worker, path());
    const std::vector<double> values = {1, 2, 3};
    ShardedState state(worker.rank(), 2);
    state.Add({{"a", "Double", 8, {6}}, 2 * worker.rank(), 3, values.data()});
    EXPECT_OK(checkpoint->Save(1, state));
    EXPECT_THAT(checkpoint->Wait(),
                StatusIs(StatusCode::kInvalidArgument,
                         HasSubstr("element 2 of tensor 'a' is in the parts of rank 0 and rank")));
    EXPECT_EQ(LatestStep(*checkpoint, worker), 0);
  });
}

TEST_F(ShardedCheckpointTest, ADirectoryThatCannotBeMade) {
  InProcessWorkers workers(2);
  workers.Run([&](Worker& worker) {
    const auto checkpoint = Open(worker, "/proc/nothing/here");
    EXPECT_THAT(Save(*checkpoint, worker, 1), StatusIs(StatusCode::kNotFound, HasSubstr("/proc/")));
    // The next call returns the error of the last write.
    RankValues values(worker.rank(), 2);
    EXPECT_OK(checkpoint->Save(2, values.State()));
    EXPECT_THAT(checkpoint->Save(3, values.State()),
                StatusIs(StatusCode::kNotFound, HasSubstr("/proc/")));
  });
}

// Fault (checkpoint): A rank does not take part in saving a checkpoint -> The other ranks get an
// error that names it, and the checkpoint before stays
TEST_F(ShardedCheckpointTest, ARankThatDoesNotComeInTime) {
  InProcessWorkers workers(2);
  const auto checkpoint = Open(workers.worker(0), path(), std::chrono::milliseconds(1));
  RankValues values(0, 2);
  EXPECT_OK(checkpoint->Save(1, values.State()));
  EXPECT_THAT(checkpoint->Wait(), StatusIs(StatusCode::kDeadlineExceeded,
                                           AllOf(HasSubstr("rank 1"), HasSubstr("in time"))));
  EXPECT_TRUE(fs::is_empty(path()));
}

TEST_F(ShardedCheckpointTest, AGenerationThatIsOverChangesNothing) {
  SaveAll(2, path(), 1);
  InProcessWorkers workers(2);
  const auto checkpoint = Open(workers.worker(0), path());
  RankValues values(0, 2);
  EXPECT_OK(checkpoint->Save(2, values.State()));
  workers.EndGeneration();
  EXPECT_THAT(checkpoint->Wait(), StatusIs(StatusCode::kAborted, HasSubstr("")));
  EXPECT_THAT(Names(), ElementsAre("LATEST", "step_1_g1"));
  ExpectLatest(2, path(), 1);
}

}  // namespace
}  // namespace cadre
