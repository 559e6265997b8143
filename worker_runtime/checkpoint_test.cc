#include "cadre/checkpoint.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/status_matchers.h"
#include "cadre/checkpoint_directory.h"
#include "worker_runtime/checkpoint/durable_file.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

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

// Fault (checkpoint): A rank saves a checkpoint after another step than rank 0 -> Rank 0's
// checkpoint is on disk, and that rank gets an error with both steps
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
  // Rank 0 has chosen, and rank 2 loads only after a newer checkpoint exists.
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

namespace fs = std::filesystem;

constexpr uint64_t kGeneration = 3;

Status NoFence() { return OkStatus(); }

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

CheckpointDirectory::Writer Bytes(const std::string& bytes) {
  return [bytes](const std::string& path) { return checkpoint::WriteAndSync(path, bytes); };
}

class CheckpointDirectoryTest : public ::testing::Test {
 protected:
  CheckpointDirectoryTest() {
    std::string pattern = ::testing::TempDir() + "/checkpoints_XXXXXX";
    EXPECT_NE(mkdtemp(&pattern[0]), nullptr);
    path_ = pattern + "/run";
  }
  ~CheckpointDirectoryTest() override { fs::remove_all(fs::path(path_).parent_path()); }

  CheckpointDirectory directory(int keep = 2) const { return CheckpointDirectory(path_, keep); }

  void Save(int64_t step, uint64_t generation = kGeneration) {
    ASSERT_OK(
        directory().Save(step, generation, Bytes("weights of " + std::to_string(step)), NoFence));
  }

  // The step that would be loaded; its data must be what was saved.
  int64_t Newest(std::string* warning = nullptr) {
    const auto newest = directory().FindNewest();
    EXPECT_OK(newest);
    if (!newest.ok() || !newest->checkpoint.has_value()) return -1;
    EXPECT_EQ(Content(newest->checkpoint->path),
              "weights of " + std::to_string(newest->checkpoint->step));
    if (warning != nullptr) {
      *warning = newest->warning;
    } else {
      EXPECT_EQ(newest->warning, "");
    }
    return newest->checkpoint->step;
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  std::string File(const std::string& name) const { return path_ + "/" + name; }
  void Overwrite(const std::string& name, const std::string& content) {
    std::ofstream(File(name), std::ios::binary | std::ios::trunc) << content;
  }

  std::string path_;
};

TEST_F(CheckpointDirectoryTest, NothingThereIsNoError) { EXPECT_EQ(Newest(), -1); }

TEST_F(CheckpointDirectoryTest, TheNewestIsLoadedAndTwoAreKept) {
  for (const int64_t step : {5, 10, 100}) {
    Save(step);
    EXPECT_EQ(Newest(), step);
  }
  EXPECT_THAT(Names(), UnorderedElementsAre("step_10_g3", "step_100_g3", "LATEST"));
}

TEST_F(CheckpointDirectoryTest, KeepsAsManyAsAskedButTwoAtLeast) {
  for (const int64_t step : {1, 2, 3, 4}) {
    ASSERT_OK(directory(3).Save(step, kGeneration, Bytes("x"), NoFence));
  }
  EXPECT_THAT(Names(), UnorderedElementsAre("step_2_g3", "step_3_g3", "step_4_g3", "LATEST"));
  ASSERT_OK(directory(0).Save(5, kGeneration, Bytes("x"), NoFence));
  EXPECT_THAT(Names(), UnorderedElementsAre("step_4_g3", "step_5_g3", "LATEST"));
}

TEST_F(CheckpointDirectoryTest, ASavedStepIsReplaced) {
  ASSERT_OK(directory().Save(5, kGeneration, Bytes("old"), NoFence));
  Save(5);
  EXPECT_EQ(Newest(), 5);
  Save(5, kGeneration + 1);
  EXPECT_EQ(Newest(), 5);
  EXPECT_THAT(Names(), UnorderedElementsAre("step_5_g4", "LATEST"));
}

// Fault (checkpoint): Writing a checkpoint fails -> The checkpoint before it stays
TEST_F(CheckpointDirectoryTest, AWriterThatFailsChangesNothing) {
  Save(5);
  const auto fails = [](const std::string& path) {
    EXPECT_OK(checkpoint::WriteAndSync(path, "half"));
    return ResourceExhaustedError("no space left");
  };
  EXPECT_THAT(directory().Save(6, kGeneration, fails, NoFence),
              StatusIs(StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("step 6"), HasSubstr("no space left"))));
  const auto writes_nothing = [](const std::string&) { return OkStatus(); };
  EXPECT_THAT(directory().Save(6, kGeneration, writes_nothing, NoFence),
              StatusIs(StatusCode::kNotFound, HasSubstr("data")));
  EXPECT_EQ(Newest(), 5);
  EXPECT_THAT(Names(), UnorderedElementsAre("step_5_g3", "LATEST"));
}

TEST_F(CheckpointDirectoryTest, TheFenceStopsAnOlderGeneration) {
  Save(5);
  Save(6, kGeneration + 1);
  const auto fence = [] { return AbortedError("the current generation is 4"); };
  EXPECT_THAT(directory().Save(7, kGeneration, Bytes("late"), fence),
              StatusIs(StatusCode::kAborted, HasSubstr("generation is 4")));
  EXPECT_EQ(Newest(), 6);
}

TEST_F(CheckpointDirectoryTest, LeftoversAreRemovedUnlessALaterGenerationOwnsThem) {
  Save(5);
  for (const char* name : {".tmp_g2_step_9_g2", ".tmp_g3_step_9_g3", ".tmp_g4_step_9_g4"}) {
    fs::create_directory(File(name));
    Overwrite(std::string(name) + "/data", "half");
  }
  Overwrite("notes.txt", "mine");
  EXPECT_EQ(Newest(), 5);
  Save(6);
  EXPECT_THAT(Names(), UnorderedElementsAre("step_5_g3", "step_6_g3", "LATEST", "notes.txt",
                                            ".tmp_g4_step_9_g4"));
}

TEST_F(CheckpointDirectoryTest, ACrashBeforeLatestWasWrittenLoadsTheOneBefore) {
  Save(5);
  const std::string latest = Content(File("LATEST"));
  Save(6);
  Overwrite("LATEST", latest);
  EXPECT_EQ(Newest(), 5);
  Save(6, kGeneration + 1);
  EXPECT_EQ(Newest(), 6);
}

// Each kind of damage is applied to the newest checkpoint, which is then skipped with a reason.
struct Damage {
  const char* name;
  const char* file;
  std::function<void(const std::string& path)> apply;
  const char* reason;
};

class DamageTest : public CheckpointDirectoryTest, public ::testing::WithParamInterface<Damage> {};

// Fault (checkpoint): A checkpoint is cut off or damaged -> The checkpoint before it is loaded,
// which is reported
TEST_P(DamageTest, FallsBackAndSaysSo) {
  Save(5);
  Save(6);
  GetParam().apply(File(std::string("step_6_g3/") + GetParam().file));
  std::string warning;
  EXPECT_EQ(Newest(&warning), 5);
  EXPECT_THAT(warning, AllOf(HasSubstr("step_6_g3 is damaged"), HasSubstr(GetParam().reason),
                             HasSubstr("step 5 is used instead")));
  // The next save repairs everything.
  Save(6, kGeneration + 1);
  EXPECT_EQ(Newest(), 6);
}

INSTANTIATE_TEST_SUITE_P(
    All, DamageTest,
    ::testing::Values(
        Damage{"DataTruncated", "data", [](const std::string& p) { fs::resize_file(p, 3); },
               "has 3 bytes and should have 12"},
        Damage{"DataEmpty", "data", [](const std::string& p) { fs::resize_file(p, 0); },
               "has 0 bytes"},
        Damage{"DataLonger", "data", [](const std::string& p) { fs::resize_file(p, 13); },
               "has 13 bytes"},
        Damage{"DataFlipped", "data",
               [](const std::string& p) { std::ofstream(p, std::ios::binary) << "weights of 7"; },
               "checksum differs"},
        Damage{"DataGone", "data", [](const std::string& p) { fs::remove(p); }, "cannot open"},
        // Opening a pipe would block its reader for ever.
        Damage{"DataIsAPipe", "data",
               [](const std::string& p) {
                 fs::remove(p);
                 ASSERT_EQ(mkfifo(p.c_str(), 0600), 0);
               },
               "not a regular file"},
        Damage{"DataIsADevice", "data",
               [](const std::string& p) {
                 fs::remove(p);
                 fs::create_symlink("/dev/zero", p);
               },
               "not a regular file"},
        Damage{"ManifestTruncated", "manifest",
               [](const std::string& p) { fs::resize_file(p, fs::file_size(p) - 4); },
               "manifest is incomplete"},
        Damage{"ManifestEmpty", "manifest", [](const std::string& p) { fs::resize_file(p, 0); },
               "manifest is incomplete"},
        Damage{"ManifestGone", "manifest", [](const std::string& p) { fs::remove(p); }, "manifest"},
        Damage{"ManifestIsAPipe", "manifest",
               [](const std::string& p) {
                 fs::remove(p);
                 ASSERT_EQ(mkfifo(p.c_str(), 0600), 0);
               },
               "not a regular file"},
        Damage{"ManifestTooLong", "manifest",
               [](const std::string& p) { fs::resize_file(p, 1 << 20); }, "longer than 4096"}),
    [](const ::testing::TestParamInfo<Damage>& info) { return std::string(info.param.name); });

TEST_F(CheckpointDirectoryTest, ADamagedLatestFallsBackToTheNewestStep) {
  Save(5);
  Save(6);
  std::string warning;
  Overwrite("LATEST", "st");
  EXPECT_EQ(Newest(&warning), 6);
  EXPECT_THAT(warning, HasSubstr("LATEST is damaged"));
  fs::remove_all(File("step_6_g3"));
  Overwrite("LATEST", "step_6_g3\n");
  EXPECT_EQ(Newest(&warning), 5);
  EXPECT_THAT(warning, HasSubstr("step_6_g3, which is not there"));
  fs::remove(File("LATEST"));
  EXPECT_EQ(Newest(), 5);
}

TEST_F(CheckpointDirectoryTest, AllDamagedIsAnError) {
  Save(5);
  Save(6);
  fs::resize_file(File("step_5_g3/data"), 1);
  fs::resize_file(File("step_6_g3/data"), 1);
  EXPECT_THAT(directory().FindNewest(),
              StatusIs(StatusCode::kDataLoss, AllOf(HasSubstr("step_5_g3"), HasSubstr("step_6_g3"),
                                                    HasSubstr("remove what is damaged"))));
}

TEST_F(CheckpointDirectoryTest, CheckWithoutReadingSeesTheLength) {
  Save(5);
  EXPECT_OK(directory().Check("step_5_g3", false));
  EXPECT_THAT(directory().Check("step_6_g3", false), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(directory().Check("LATEST", false), StatusIs(StatusCode::kNotFound));
  fs::resize_file(File("step_5_g3/data"), 1);
  EXPECT_THAT(directory().Check("step_5_g3", false), StatusIs(StatusCode::kDataLoss));
}

TEST_F(CheckpointDirectoryTest, AnEmptyNameIsRefusedAtOnce) {
  const auto empty_name = StatusIs(StatusCode::kInvalidArgument, HasSubstr("empty name"));
  const CheckpointDirectory nameless("");
  EXPECT_THAT(nameless.FindNewest(), empty_name);
  EXPECT_THAT(nameless.Save(1, 1, Bytes("x"), NoFence), empty_name);
}

TEST_F(CheckpointDirectoryTest, SaysThatTheDirectoryCannotBeMade) {
  const CheckpointDirectory nowhere("/proc/checkpoints");
  EXPECT_THAT(nowhere.Save(1, 1, Bytes("x"), NoFence).message(), HasSubstr("/proc/checkpoints"));
  EXPECT_THAT(directory().Save(-1, 1, Bytes("x"), NoFence), StatusIs(StatusCode::kInvalidArgument));
}

}  // namespace

}  // namespace cadre
