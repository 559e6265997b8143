// Copies of ranks' own states on partner nodes: see cadre/memory_checkpoint.h.
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "cadre/memory_checkpoint.h"
#include "worker_runtime/testing/in_process_workers.h"
#include "worker_runtime/testing/memory_rig.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

// The bytes of every state, so many that it is sent in several pieces.
constexpr size_t kBulk = 5 << 20;

class MemoryPartnerTest : public testing::MemoryRig {
 protected:
  std::unique_ptr<MemoryCheckpoint> Open(Worker& worker, bool partner = true) const {
    MemoryCheckpointOptions options;
    options.partner = partner;
    return OpenWith(worker, options);
  }

  // Each rank's state has another size.
  static std::string StateOf(int rank, int64_t step) {
    return absl::StrCat("rank ", rank, " at ", step, std::string(kBulk + rank, 'x'));
  }
  static Status Save(MemoryCheckpoint& memory, int rank, int64_t step) {
    const std::string state = StateOf(rank, step);
    const StatePart part = {state.data(), state.size()};
    const Status status = memory.Save(step, {&part, 1});
    return status.ok() ? memory.Wait() : status;
  }
  // All ranks save these steps, and leave when all of them have reached their partners.
  void SaveAll(testing::InProcessWorkers& workers, int64_t from, int64_t to,
               bool partner = true) const {
    workers.Run([&](Worker& worker) {
      const auto memory = Open(worker, partner);
      for (int64_t step = from; step <= to; ++step) {
        EXPECT_OK(Save(*memory, worker.rank(), step));
      }
      EXPECT_OK(memory->WaitForPartner());
      EXPECT_OK(worker.Barrier("saved", kLong));
    });
  }
  // -1: none.
  static int64_t StepOf(MemoryCheckpoint& memory, int rank) {
    const auto latest = memory.Latest();
    EXPECT_OK(latest);
    if (!latest.ok() || !latest->has_value()) return -1;
    const std::string bytes((*latest)->bytes.begin(), (*latest)->bytes.end());
    EXPECT_TRUE(bytes == StateOf(rank, (*latest)->step)) << rank;
    return (*latest)->step;
  }
  void AllGoOnBehind(int64_t step, testing::InProcessWorkers& workers) const {
    workers.Run([&](Worker& worker) { EXPECT_EQ(StepOf(*Open(worker), worker.rank()), step); });
  }
};

TEST_F(MemoryPartnerTest, ALostNodeCostsNothingThatWasWithItsPartner) {
  for (const int lost : {0, 1, 2}) {
    testing::InProcessWorkers workers(6, 3);
    SaveAll(workers, 1, 5);
    std::filesystem::remove_all(NodeFolder(lost));
    testing::InProcessWorkers restarted(6, 3);
    AllGoOnBehind(5, restarted);
    // The restored state stays.
    AllGoOnBehind(5, restarted);
    std::filesystem::remove_all(path());
  }
}

TEST_F(MemoryPartnerTest, NodesMayDifferInSize) {
  for (const int lost : {0, 1}) {
    testing::InProcessWorkers workers(5, 2);  // 2 and 3
    SaveAll(workers, 1, 2);
    std::filesystem::remove_all(NodeFolder(lost));
    testing::InProcessWorkers restarted(5, 2);
    AllGoOnBehind(2, restarted);
    std::filesystem::remove_all(path());
  }
}

TEST_F(MemoryPartnerTest, OneNodeAfterTheOtherMayBeLost) {
  for (int generation = 0; generation < 4; ++generation) {
    testing::InProcessWorkers workers(4, 2);
    AllGoOnBehind(generation == 0 ? -1 : 10 * generation, workers);
    SaveAll(workers, 10 * generation + 7, 10 * generation + 10);
    std::filesystem::remove_all(NodeFolder(generation % 2));
  }
}

TEST_F(MemoryPartnerTest, RanksMayMoveToOtherNodes_WhichForgetTheOthersInTime) {
  testing::InProcessWorkers workers(6, 3);
  SaveAll(workers, 1, 4);
  // Node 1 is lost, node 2 takes its place, and a new node that of node 2.
  std::filesystem::remove_all(NodeFolder(1));
  std::filesystem::rename(NodeFolder(2), NodeFolder(1));
  testing::InProcessWorkers moved(6, 3);
  AllGoOnBehind(4, moved);
  SaveAll(moved, 5, 8);
  for (const char* gone : {"/rank-4.0", "/rank-5.0", "/copy-2.0", "/copy-3.0"}) {
    EXPECT_FALSE(std::filesystem::exists(NodeFolder(1) + gone)) << gone;
  }
  for (const char* here : {"/rank-2.0", "/rank-3.0", "/copy-0.0", "/copy-1.0"}) {
    EXPECT_TRUE(std::filesystem::exists(NodeFolder(1) + here)) << here;
  }
  AllGoOnBehind(8, moved);
}

TEST_F(MemoryPartnerTest, WithoutPartnersALostNodeTakesItsRanksStates) {
  testing::InProcessWorkers workers(4, 2);
  SaveAll(workers, 1, 3, /*partner=*/false);
  EXPECT_FALSE(std::filesystem::exists(NodeFolder(1) + "/copy-0.0"));
  std::filesystem::remove_all(NodeFolder(1));
  testing::InProcessWorkers restarted(4, 2);
  AllGoOnBehind(-1, restarted);
}

TEST_F(MemoryPartnerTest, OfRanksThatTrainTogetherAtMostOneStepIsLost) {
  for (const int64_t last : {3, 4, 5, 6}) {
    testing::InProcessWorkers workers(4, 2);
    workers.Run([&](Worker& worker) {
      const auto memory = Open(worker);
      for (int64_t step = 1; step <= last; ++step) {
        EXPECT_OK(worker.Barrier("gradients", kLong));
        EXPECT_OK(Save(*memory, worker.rank(), step));
      }
      // All ranks have reached this point, whether or not the last states have been sent.
      EXPECT_OK(worker.Barrier("killed", kLong));
    });
    std::filesystem::remove_all(NodeFolder(1));
    testing::InProcessWorkers restarted(4, 2);
    restarted.Run([&](Worker& worker) {
      const int64_t step = StepOf(*Open(worker), worker.rank());
      EXPECT_GE(step, last - 1);
      EXPECT_LE(step, last);
    });
    std::filesystem::remove_all(path());
  }
}

TEST_F(MemoryPartnerTest, APartnerThatIsGoneIsSaidOnceAndTrainingGoesOn) {
  testing::InProcessWorkers workers(2, 2);
  workers.Run([&](Worker& worker) {
    auto memory = Open(worker);
    EXPECT_OK(Save(*memory, worker.rank(), 1));
    EXPECT_OK(memory->WaitForPartner());
    EXPECT_OK(worker.Barrier("saved", kLong));
    if (worker.rank() == 1) memory.reset();
    EXPECT_OK(worker.Barrier("gone", kLong));
    if (worker.rank() == 1) return;
    for (const int64_t step : {2, 3, 4}) EXPECT_OK(Save(*memory, 0, step));
    const Status status = memory->WaitForPartner();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
    EXPECT_OK(memory->WaitForPartner());
    EXPECT_OK(Save(*memory, 0, 5));
    EXPECT_OK(memory->WaitForPartner());
  });
  // Rank 0's own state of that step no longer exists: both go back to the copy.
  testing::InProcessWorkers restarted(2, 2);
  AllGoOnBehind(1, restarted);
}

TEST_F(MemoryPartnerTest, AGenerationThatEndsWhileRanksConnectKeepsNobody) {
  testing::InProcessWorkers workers(2, 2);
  const auto memory = Open(workers.worker(0));
  EXPECT_OK(Save(*memory, 0, 1));
  workers.EndGeneration();
  EXPECT_EQ(memory->WaitForPartner().code(), StatusCode::kAborted);
  EXPECT_OK(Save(*memory, 0, 2));
}

TEST_F(MemoryPartnerTest, APartnerThatNeverComesIsNotWaitedForAtTheEnd) {
  testing::InProcessWorkers workers(2, 2);
  EXPECT_OK(Save(*Open(workers.worker(0)), 0, 1));
}

}  // namespace
}  // namespace cadre
