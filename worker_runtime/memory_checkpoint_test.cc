#include "cadre/memory_checkpoint.h"

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "worker_runtime/memory/files/slot_file.h"
#include "worker_runtime/testing/in_process_workers.h"
#include "worker_runtime/testing/memory_rig.h"

namespace cadre {
namespace {

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

  // In two parts, the second of which is the same for all.
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
    // What was begun and not committed is not there.
    const StatePart part = {"half", 4};
    EXPECT_OK(memory->Write({&part, 1}));
  });
  testing::InProcessWorkers restarted(3);
  restarted.Run([&](Worker& worker) {
    const auto memory = Open(worker);
    EXPECT_EQ(LatestOf(*memory), "6:state ");
    // The newer one of ranks 0 and 2 is forgotten.
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
              HasSubstr("the state of step 1 is of 3 ranks, of which this job of 2 can take none"));
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

TEST_F(MemoryCheckpointTest, OneThatWasSavedOtherwiseIsAnErrorThatNamesTheStep) {
  for (const bool saved : {true, false}) {
    testing::InProcessWorkers workers(4, 2);
    workers.Run([&](Worker& worker) { EXPECT_OK(Save(*Open(worker, saved), 5, "state ")); });
    // A node that is new knows nothing of it by itself.
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

// Node 0 saves steps that the others do not learn of, and comes back, as the first node or the
// last, when they have gone on from the step before and saved another one.
TEST_F(MemoryCheckpointTest, AReplicatedStepCountsWithItsGeneration) {
  // The same step as the others' or a further one.
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
    // Of the generation that saved it, so that it is what the others have.
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

}  // namespace
}  // namespace cadre
