#include "cadre/memory_checkpoint.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "worker_runtime/memory/files/memory_slots.h"
#include "worker_runtime/memory/spill.h"
#include "worker_runtime/store/group_worker.h"
#include "worker_runtime/testing/in_process_workers.h"
#include "worker_runtime/testing/memory_rig.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class MemoryCheckpointTest : public testing::MemoryRig {
 protected:
  std::unique_ptr<MemoryCheckpoint> Open(Worker& worker, bool replicated = false) const {
    MemoryCheckpointOptions options;
    options.replicated = replicated;
    return OpenWith(worker, options);
  }

  // Saves two parts, the second of which is the same for all states.
  static Status Save(MemoryCheckpoint& memory, int64_t step, const std::string& state) {
    const std::string rest(100000, 'x');
    const std::vector<StatePart> parts = {{state.data(), state.size()}, {rest.data(), rest.size()}};
    const Status status = memory.Save(step, parts);
    return status.ok() ? memory.Wait() : status;
  }
  // "STEP:STATE", or "none".
  static std::string LatestOf(MemoryCheckpoint& memory) {
    const auto latest = memory.Latest();
    if (!latest.ok()) return std::string(latest.status().message());
    if (!latest->has_value()) return "none";
    const std::string bytes((*latest)->bytes.begin(), (*latest)->bytes.end());
    EXPECT_EQ(bytes.substr(bytes.find('x')), std::string(100000, 'x'));
    return absl::StrCat((*latest)->step, ":", bytes.substr(0, bytes.find('x')));
  }
  // Generation and step of the replicated states in the memory of a node.
  std::vector<std::pair<uint64_t, int64_t>> StatesOf(int node) const {
    std::vector<std::pair<uint64_t, int64_t>> states;
    for (const auto& file : std::filesystem::directory_iterator(NodeFolder(node))) {
      const auto label = memory::ReadLabel(file.path().string());
      if (label.has_value()) states.emplace_back(label->generation, label->step);
    }
    return states;
  }
};

TEST_F(MemoryCheckpointTest, EachRankGetsItsOwnStateBack) {
  testing::InProcessWorkers workers(3);
  workers.Run([&](Worker& worker) {
    const auto memory = Open(worker);
    EXPECT_EQ(LatestOf(*memory), "none");
    for (const int64_t step : {1, 2, 3, 4}) {
      EXPECT_OK(Save(*memory, step, absl::StrCat("rank ", worker.rank(), " at ", step)));
    }
  });
  testing::InProcessWorkers restarted(3);
  restarted.Run([&](Worker& worker) {
    EXPECT_EQ(LatestOf(*Open(worker)), absl::StrCat("4:rank ", worker.rank(), " at 4"));
  });
}

TEST_F(MemoryCheckpointTest, AllGoBackToTheStepThatEachHas) {
  testing::InProcessWorkers workers(3);
  workers.Run([&](Worker& worker) {
    const auto memory = Open(worker);
    const int64_t last = worker.rank() == 1 ? 6 : 7;
    for (int64_t step = 1; step <= last; ++step) EXPECT_OK(Save(*memory, step, "state "));
    // A state that was written but not committed is not visible.
    const StatePart part = {"half", 4};
    EXPECT_OK(memory->Write({&part, 1}));
  });
  testing::InProcessWorkers restarted(3);
  restarted.Run([&](Worker& worker) {
    const auto memory = Open(worker);
    EXPECT_EQ(LatestOf(*memory), "6:state ");
    // The newer state of ranks 0 and 2 is dropped.
    EXPECT_EQ(LatestOf(*memory), "6:state ");
    if (worker.rank() == 1) {
      EXPECT_OK(Save(*memory, 7, "state "));
    }
  });
  restarted.Run([&](Worker& worker) { EXPECT_EQ(LatestOf(*Open(worker)), "6:state "); });
}

TEST_F(MemoryCheckpointTest, AnotherNumberOfRanksHasNoneOfTheRanksOwn) {
  testing::InProcessWorkers workers(3);
  workers.Run([&](Worker& worker) { EXPECT_OK(Save(*Open(worker), 1, "state")); });
  testing::InProcessWorkers fewer(2);
  ::testing::internal::CaptureStderr();
  fewer.Run([&](Worker& worker) { EXPECT_EQ(LatestOf(*Open(worker)), "none"); });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("the state of step 1 is of 3 ranks, and a job of 2 ranks cannot load it"));
}

TEST_F(MemoryCheckpointTest, AReplicatedOneIsThereForAnyNumberOfRanks) {
  testing::InProcessWorkers workers(3);
  workers.Run([&](Worker& worker) {
    const auto memory = Open(worker, /*replicated=*/true);
    for (const int64_t step : {8, 9}) EXPECT_OK(Save(*memory, step, absl::StrCat("at ", step)));
  });
  testing::InProcessWorkers fewer(2);
  fewer.Run(
      [&](Worker& worker) { EXPECT_EQ(LatestOf(*Open(worker, /*replicated=*/true)), "9:at 9"); });
}

// Fault (checkpoint): An in-memory state was saved as replicated and is requested as each rank's
// own, or the other way round -> All ranks, on new nodes too, get an error that names the step
TEST_F(MemoryCheckpointTest, OneThatWasSavedOtherwiseIsAnErrorThatNamesTheStep) {
  for (const bool saved : {true, false}) {
    testing::InProcessWorkers workers(4, 2);
    workers.Run([&](Worker& worker) { EXPECT_OK(Save(*Open(worker, saved), 5, "state ")); });
    // A new node has no state of its own that would show how it was saved.
    std::filesystem::remove_all(NodeFolder(1));
    testing::InProcessWorkers restarted(4, 2);
    restarted.Run([&](Worker& worker) {
      const auto memory = Open(worker, !saved);
      EXPECT_THAT(LatestOf(*memory), HasSubstr("the state of step 5 was saved as "));
      const auto replicated = memory->SavedReplicated();
      ASSERT_OK(replicated);
      EXPECT_EQ(*replicated, std::optional<bool>(saved));
    });
    for (const int node : {0, 1}) std::filesystem::remove_all(NodeFolder(node));
  }
}

TEST_F(MemoryCheckpointTest, WhereThereIsNoneItWasSavedInNoWay) {
  testing::InProcessWorkers workers(2);
  workers.Run([&](Worker& worker) {
    const auto memory = Open(worker);
    EXPECT_EQ(LatestOf(*memory), "none");
    const auto replicated = memory->SavedReplicated();
    ASSERT_OK(replicated);
    EXPECT_FALSE(replicated->has_value());
  });
}

TEST_F(MemoryCheckpointTest, ANewNodeGetsItFromAnother) {
  testing::InProcessWorkers workers(4, 2);
  workers.Run(
      [&](Worker& worker) { EXPECT_OK(Save(*Open(worker, /*replicated=*/true), 5, "shared ")); });
  for (const int lost : {0, 1}) {
    std::filesystem::remove_all(NodeFolder(lost));
    testing::InProcessWorkers restarted(4, 2);
    restarted.Run([&](Worker& worker) {
      EXPECT_EQ(LatestOf(*Open(worker, /*replicated=*/true)), "5:shared ");
    });
  }
}

// Node 0 saves steps that the others do not have, and comes back, as the first or the last node,
// when the others have continued from the step before and saved another state.
//
// Fault (checkpoint): A node returns with a replicated in-memory state of a step that the others
// have repeated without it -> The others' state counts, because it is of the later generation, and
// the node receives it
TEST_F(MemoryCheckpointTest, AReplicatedStepCountsWithItsGeneration) {
  // Node 0 saves up to the same step as the others, or a later one.
  for (const auto& [last, back] : {std::pair(101, 0), std::pair(102, 2)}) {
    testing::InProcessWorkers first(3, 3, /*generation=*/1);
    first.Run([&, last = last](Worker& worker) {
      const auto memory = Open(worker, /*replicated=*/true);
      EXPECT_OK(Save(*memory, 100, "of all "));
      for (int step = 101; worker.rank() == 0 && step <= last; ++step) {
        EXPECT_OK(Save(*memory, step, "of node 0 alone "));
      }
    });
    const std::string away = path() + "/away";
    std::filesystem::rename(NodeFolder(0), away);
    for (const int node : {1, 2}) std::filesystem::rename(NodeFolder(node), NodeFolder(node - 1));
    testing::InProcessWorkers second(2, 2, /*generation=*/2);
    second.Run([&](Worker& worker) {
      const auto memory = Open(worker, /*replicated=*/true);
      EXPECT_EQ(LatestOf(*memory), "100:of all ");
      EXPECT_OK(Save(*memory, 101, "of the others "));
    });
    for (int node = 2; node > back; --node) {
      std::filesystem::rename(NodeFolder(node - 1), NodeFolder(node));
    }
    std::filesystem::rename(away, NodeFolder(back));
    testing::InProcessWorkers third(3, 3, /*generation=*/3);
    third.Run([&](Worker& worker) {
      EXPECT_EQ(LatestOf(*Open(worker, /*replicated=*/true)), "101:of the others ");
    });
    // The state is of the generation that saved it, so it is the one that the others have.
    EXPECT_THAT(StatesOf(back), ElementsAre(Pair(2, 101)));
    std::filesystem::remove_all(path());
  }
}

TEST_F(MemoryCheckpointTest, SaveCopiesBehindAndAFailedCopyIsSaidOnce) {
  testing::InProcessWorkers workers(1);
  const auto memory = Open(workers.worker(0));
  const std::string state(1 << 20, 'x');
  const StatePart part = {state.data(), state.size()};
  EXPECT_OK(memory->Save(1, {&part, 1}));
  EXPECT_OK(memory->Save(2, {&part, 1}));
  EXPECT_OK(memory->Wait());
  std::filesystem::remove_all(path());
  EXPECT_OK(memory->Save(3, {&part, 1}));
  EXPECT_FALSE(memory->Wait().ok());
  EXPECT_OK(memory->Wait());
  EXPECT_EQ(memory->Commit(-1).code(), StatusCode::kInvalidArgument);
}

TEST_F(MemoryCheckpointTest, WithoutAnAgentAFolderIsNeeded) {
  unsetenv("CADRE_CHECKPOINT_MEMORY");
  testing::InProcessWorkers workers(1);
  const auto opened = MemoryCheckpoint::Open(workers.worker(0), {});
  EXPECT_EQ(opened.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("cadre run"));
}

TEST_F(MemoryCheckpointTest, AFolderThatOthersMayWriteToIsRefused) {
  std::filesystem::permissions(path(), std::filesystem::perms::all);
  testing::InProcessWorkers workers(1);
  MemoryCheckpointOptions options;
  options.directory = path();
  EXPECT_EQ(MemoryCheckpoint::Open(workers.worker(0), options).status().code(),
            StatusCode::kFailedPrecondition);
}

// States in memory that are also written to a directory: see cadre/memory_checkpoint.h.

namespace fs = std::filesystem;

constexpr std::chrono::nanoseconds kAlways = std::chrono::nanoseconds(0);

// How long a call to an unreachable store takes.
constexpr absl::Duration kAway = absl::Seconds(20);

// A worker whose store cannot be reached until `back` is notified.
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
  // All ranks save together, and end when the background writes have ended.
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
  // The number of files of states below the directory.
  int Files() const {
    int files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(directory())) {
      files += entry.is_regular_file() ? 1 : 0;
    }
    return files;
  }
  // Called by all ranks: saves from step 1 on, until the directory has a complete state of a step
  // above `wanted`. As with gradients, no rank is more than a step ahead.
  void TrainUntilWhole(Worker& worker, int64_t wanted,
                       const std::function<void(int64_t)>& save) const {
    const MonoTime deadline = MonoNow() + absl::Seconds(30);
    bool goes_on = true;
    for (int64_t step = 1; goes_on; ++step) {
      save(step);
      // Neither of the two keys is set again before all ranks have read it.
      const std::string key = absl::StrCat("goes on/", step % 2);
      if (worker.rank() == 0) {
        const auto whole = memory::SpillDirectory(directory(), 0, 2).Complete();
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
    // Now it is in memory again.
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

// Fault (checkpoint): In-memory states are also written to a directory, and one rank's save fails
// -> Training goes on, and later states in the directory are complete
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
  // Two complete ones, and a few for which ranks wrote different steps or are about to write.
  EXPECT_LE(Directories(), 8);
  LoseAllNodes();
  testing::InProcessWorkers restarted(2, 1);
  EXPECT_GT(StepOfAll(restarted, false), kSkipped + 40);
}

// Fault (checkpoint): The server does not answer while in-memory states are written to a directory
// -> Training waits once, at most 1 s; nothing is written until the server answers again
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
    // A single call to the store takes longer.
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

// Fault (checkpoint): A state that was spilled to files is damaged on one rank -> All ranks take
// the state before it, and standard error names rank and file
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

// Fault (checkpoint): No spilled state can be read -> All ranks get an error that names rank and
// file
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

// Fault (checkpoint): A job finds only spilled states of another number of ranks -> All ranks get
// an error that names these states, and the files stay
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
