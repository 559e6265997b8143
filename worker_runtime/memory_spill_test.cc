// States in memory that are also written to a directory: see cadre/memory_checkpoint.h.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "cadre/memory_checkpoint.h"
#include "worker_runtime/memory/spill_directory.h"
#include "worker_runtime/store/group_worker.h"
#include "worker_runtime/testing/in_process_workers.h"
#include "worker_runtime/testing/memory_rig.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kAlways = std::chrono::nanoseconds(0);

// How long a call to a store takes that is away.
constexpr absl::Duration kAway = absl::Seconds(20);

// Its store is away until it is back.
class AwayWorker : public store::GroupWorker {
 public:
  AwayWorker(Worker& worker, absl::Notification& back)
      : store::GroupWorker(&worker, "away", worker.place()), back_(back) {}

  Status Set(std::string_view key, std::string_view value) override {
    RETURN_IF_ERROR(Await());
    return store::GroupWorker::Set(key, value);
  }
  Result<std::string> Get(std::string_view key, std::chrono::nanoseconds timeout) override {
    RETURN_IF_ERROR(Await());
    return store::GroupWorker::Get(key, timeout);
  }

 private:
  Status Await() const {
    return back_.WaitForNotificationWithTimeout(kAway) ? OkStatus() : UnavailableError("away");
  }

  absl::Notification& back_;
};

class MemorySpillTest : public testing::MemoryRig {
 protected:
  std::unique_ptr<MemoryCheckpoint> Open(Worker& worker, bool replicated,
                                         std::chrono::nanoseconds every = kAlways) const {
    MemoryCheckpointOptions options;
    options.replicated = replicated;
    auto opened = OpenWith(worker, options);
    EXPECT_OK(opened->Spill(directory(), every));
    return opened;
  }
  std::string directory() const { return path() + "/spilled"; }
  static std::string StateOf(int rank, int64_t step) {
    return absl::StrCat("rank ", rank, " at ", step, std::string(100000 + rank, 'x'));
  }
  // All ranks train together, and end when what is being written is.
  void SaveAll(testing::InProcessWorkers& workers, int64_t from, int64_t to, bool replicated,
               std::chrono::nanoseconds every = kAlways) const {
    workers.Run([&](Worker& worker) {
      const auto memory = Open(worker, replicated, every);
      for (int64_t step = from; step <= to; ++step) {
        EXPECT_OK(worker.Barrier("gradients", kLong));
        const std::string state = StateOf(replicated ? 0 : worker.rank(), step);
        const StatePart part = {state.data(), state.size()};
        EXPECT_OK(memory->Save(step, {&part, 1}));
        EXPECT_OK(memory->Wait());
      }
      EXPECT_OK(memory->WaitForPartner());
      EXPECT_OK(worker.Barrier("saved", kLong));
    });
  }
  void LoseAllNodes() const {
    for (const char* node : {"/node-0", "/node-1"}) fs::remove_all(path() + node);
  }
  // -1: none. All ranks get the same.
  int64_t StepOfAll(testing::InProcessWorkers& workers, bool replicated) const {
    std::vector<int64_t> steps(workers.world_size());
    workers.Run([&](Worker& worker) {
      const auto memory = Open(worker, replicated);
      const auto latest = memory->Latest();
      EXPECT_OK(latest);
      if (!latest.ok()) return;
      steps[worker.rank()] = latest->has_value() ? (*latest)->step : -1;
      if (!latest->has_value()) return;
      const std::string bytes((*latest)->bytes.begin(), (*latest)->bytes.end());
      EXPECT_EQ(bytes, StateOf(replicated ? 0 : worker.rank(), (*latest)->step));
    });
    for (const int64_t step : steps) EXPECT_EQ(step, steps[0]);
    return steps[0];
  }
  // Files of states below the directory.
  int Files() const {
    int files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(directory())) {
      files += entry.is_regular_file() ? 1 : 0;
    }
    return files;
  }
  // Saves as all ranks do, from step 1 on, until the directory has a whole state of one above
  // `wanted`. As with gradients, nobody is more than a step ahead.
  void TrainUntilWhole(Worker& worker, int64_t wanted,
                       const std::function<void(int64_t)>& save) const {
    const MonoTime deadline = MonoNow() + absl::Seconds(30);
    bool goes_on = true;
    for (int64_t step = 1; goes_on; ++step) {
      save(step);
      // Nobody sets one of the two before all have read it.
      const std::string key = absl::StrCat("goes on/", step % 2);
      if (worker.rank() == 0) {
        const auto whole = memory::SpillDirectory(directory(), 0, 2).Whole();
        const bool is_there = !whole.empty() && whole.front().step > wanted;
        EXPECT_OK(worker.Set(key, is_there || MonoNow() > deadline ? "no" : "yes"));
      }
      EXPECT_OK(worker.Barrier("gradients", kLong));
      const auto said = worker.Get(key, kLong);
      EXPECT_OK(said);
      goes_on = said.ok() && *said == "yes";
    }
    EXPECT_LT(MonoNow(), deadline);
  }
  int Directories() const {
    const fs::directory_iterator all(directory());
    return static_cast<int>(std::distance(fs::begin(all), fs::end(all)));
  }
};

TEST_F(MemorySpillTest, AllNodesMayBeLost) {
  for (const bool replicated : {false, true}) {
    testing::InProcessWorkers workers(4, 2);
    SaveAll(workers, 1, 20, replicated);
    LoseAllNodes();
    testing::InProcessWorkers restarted(4, 2);
    const int64_t step = StepOfAll(restarted, replicated);
    EXPECT_GE(step, 3);
    EXPECT_LE(step, 20);
    // And now it is in memory again.
    fs::remove_all(directory());
    EXPECT_EQ(StepOfAll(restarted, replicated), step);
    fs::remove_all(path());
  }
}

TEST_F(MemorySpillTest, WhatIsInMemoryIsNewer) {
  testing::InProcessWorkers workers(2, 1);
  SaveAll(workers, 1, 8, /*replicated=*/false, std::chrono::hours(1));
  EXPECT_EQ(Files(), 2);  // of step 3
  testing::InProcessWorkers restarted(2, 1);
  EXPECT_EQ(StepOfAll(restarted, false), 8);
  LoseAllNodes();
  EXPECT_EQ(StepOfAll(restarted, false), 3);
}

TEST_F(MemorySpillTest, ASaveThatFailedOnOneRankSpoilsNoLaterOne) {
  constexpr int64_t kSkipped = 7;
  testing::InProcessWorkers workers(2, 1);
  workers.Run([&](Worker& worker) {
    const auto memory = Open(worker, /*replicated=*/false);
    TrainUntilWhole(worker, kSkipped + 40, [&](int64_t step) {
      const std::string state = StateOf(worker.rank(), step);
      StatePart part = {state.data(), state.size()};
      const bool fails = worker.rank() == 1 && step == kSkipped;
      if (fails) part.size = size_t{1} << 60;
      EXPECT_OK(memory->Save(step, {&part, 1}));
      EXPECT_EQ(memory->Wait().code(), fails ? StatusCode::kResourceExhausted : StatusCode::kOk);
    });
  });
  // Two whole ones, and a few of which ranks wrote different steps or are about to write.
  EXPECT_LE(Directories(), 8);
  LoseAllNodes();
  testing::InProcessWorkers restarted(2, 1);
  EXPECT_GT(StepOfAll(restarted, false), kSkipped + 40);
}

TEST_F(MemorySpillTest, AStoreThatIsAwayHoldsNobodyUp_AndIsAskedAgain) {
  testing::InProcessWorkers workers(2, 1);
  absl::Notification back;
  workers.Run([&](Worker& worker) {
    AwayWorker away(worker, back);
    const auto memory = Open(away, /*replicated=*/false);
    const auto save = [&](int64_t step) {
      const std::string state = StateOf(worker.rank(), step);
      const StatePart part = {state.data(), state.size()};
      EXPECT_OK(memory->Save(step, {&part, 1}));
      EXPECT_OK(memory->Wait());
    };
    const MonoTime begin = MonoNow();
    for (int64_t step = 1; step <= 20; ++step) save(step);
    // One call of it takes longer.
    EXPECT_LT(MonoNow() - begin, kAway / 2);
    EXPECT_OK(worker.Barrier("saved", kLong));
    if (worker.rank() == 0) back.Notify();
    TrainUntilWhole(worker, 40, save);
  });
}

TEST_F(MemorySpillTest, WhereTrainingWentBackRanksStatesAreOfOneTime) {
  testing::InProcessWorkers workers(2, 1);
  workers.Run([&](Worker& worker) {
    const auto memory = Open(worker, /*replicated=*/false);
    for (int time = 0; time < 30; ++time) {
      for (int64_t step = 1; step <= 6; ++step) {
        EXPECT_OK(worker.Barrier("gradients", kLong));
        const std::string state = absl::StrCat("time ", time);
        const StatePart part = {state.data(), state.size()};
        EXPECT_OK(memory->Save(step, {&part, 1}));
        EXPECT_OK(memory->Wait());
      }
    }
  });
  LoseAllNodes();
  testing::InProcessWorkers restarted(2, 1);
  std::vector<std::string> states(2);
  restarted.Run([&](Worker& worker) {
    const auto memory = Open(worker, /*replicated=*/false);
    const auto latest = memory->Latest();
    ASSERT_OK(latest);
    ASSERT_TRUE(latest->has_value());
    states[worker.rank()].assign((*latest)->bytes.begin(), (*latest)->bytes.end());
  });
  EXPECT_EQ(states[0], states[1]);
}

TEST_F(MemorySpillTest, ADamagedStateGivesWayToTheOneBefore_OnAllRanks) {
  for (int64_t first : {1, 11}) {
    testing::InProcessWorkers workers(2, 1);
    SaveAll(workers, first, first + 3, /*replicated=*/false, std::chrono::hours(1));
  }
  LoseAllNodes();
  for (const auto& entry : fs::recursive_directory_iterator(directory())) {
    const std::string path = entry.path().string();
    if (path.find("step_13") != std::string::npos && path.find("rank-1") != std::string::npos) {
      std::ofstream(path) << "damaged";
    }
  }
  testing::InProcessWorkers restarted(2, 1);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(StepOfAll(restarted, false), 3);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("cadre: checkpoint in memory: rank 1: "),
                    HasSubstr("is not what was written; that state is left out")));
}

TEST_F(MemorySpillTest, NoneThatCanBeReadIsAnError) {
  testing::InProcessWorkers workers(2, 1);
  SaveAll(workers, 1, 4, /*replicated=*/false, std::chrono::hours(1));
  LoseAllNodes();
  for (const auto& entry : fs::recursive_directory_iterator(directory())) {
    if (entry.is_regular_file()) fs::resize_file(entry.path(), 5);
  }
  testing::InProcessWorkers restarted(2, 1);
  restarted.Run([&](Worker& worker) {
    const auto latest = Open(worker, false)->Latest();
    EXPECT_EQ(latest.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(std::string(latest.status().message()),
                AllOf(HasSubstr("rank 0: "), HasSubstr("is not what was written"),
                      HasSubstr("to start from the beginning")));
  });
}

TEST_F(MemorySpillTest, StatesOfAnotherNumberOfRanksAreAnErrorThatNamesThem) {
  testing::InProcessWorkers workers(3, 1);
  SaveAll(workers, 1, 4, /*replicated=*/false, std::chrono::hours(1));
  LoseAllNodes();
  const int files = Files();
  testing::InProcessWorkers fewer(2, 1);
  fewer.Run([&](Worker& worker) {
    const auto latest = Open(worker, false)->Latest();
    EXPECT_EQ(latest.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(latest.status().message()), HasSubstr(" of 3 ranks)"));
  });
  EXPECT_EQ(Files(), files);
}

TEST_F(MemorySpillTest, ADirectoryThatIsGoneIsSaidAndTrainingGoesOn) {
  testing::InProcessWorkers workers(1);
  const auto memory = Open(workers.worker(0), false);
  fs::remove_all(directory());
  std::ofstream(directory()) << "a file in its place";
  Status problem;
  const StatePart part = {"state", 5};
  for (int64_t step = 1; problem.ok() && step < 1000000; ++step) {
    EXPECT_OK(memory->Write({&part, 1}));
    EXPECT_OK(memory->Commit(step));
    problem = memory->Wait();
  }
  EXPECT_THAT(std::string(problem.message()), HasSubstr(directory()));
  EXPECT_OK(memory->Wait());
}

TEST_F(MemorySpillTest, ABadDirectoryIsSaidAtOnce) {
  std::ofstream(path() + "/file") << "no directory";
  testing::InProcessWorkers workers(1);
  const auto memory = Open(workers.worker(0), false);
  const Status status = memory->Spill(path() + "/file", kLong);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(path() + "/file"));
}

}  // namespace
}  // namespace cadre
