// What a pretend communicator is like when a rank of it has gone, or is not what it was.
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <string>

#include "base/status_matchers.h"
#include "worker_runtime/testing/pretend_gpu/rank_rig.h"

#ifdef CADRE_WITH_NCCL

namespace cadre::pretend_gpu {
namespace {

using ::testing::HasSubstr;

TEST(LostRankTest, ARankIsKilled) {
  testing::ForkedWorkers workers(2);
  workers.Start([](Worker& worker) {
    return RunOnRank(worker, [](Rank& rank) {
      ASSERT_EQ(rank.Form(), ncclSuccess);
      float* const memory = rank.Allocate();
      rank.Signal(rank.worker.rank() == 0 ? "formed/0" : "formed/1");
      if (rank.worker.rank() == 1) return rank.Await("never");
      EXPECT_EQ(rank.AllReduce(memory, rank.one), ncclSuccess);
      EXPECT_EQ(rank.WaitForError(), ncclRemoteError);
      EXPECT_THAT(std::string(rank.nccl.GetLastError(rank.communicator)),
                  HasSubstr("rank 1 is gone"));
      EXPECT_EQ(rank.nccl.CommAbort(rank.communicator), ncclSuccess);
      EXPECT_EQ(rank.cuda.Free(memory), cudaSuccess);
    });
  });
  for (const char* const formed : {"formed/0", "formed/1"}) {
    ASSERT_OK(workers.observer().Get(formed, kLong));
  }
  workers.Signal(1, SIGKILL);
  EXPECT_EQ(workers.Wait(1), 128 + SIGKILL);
  EXPECT_EQ(workers.Wait(0), 0);
}

// As where the ranks share memory: nothing tells that one has gone, so what runs hangs.
TEST(LostRankTest, ARankIsKilledAndNothingTells) {
  testing::ForkedWorkers workers(2);
  workers.Start([](Worker& worker) {
    setenv("CADRE_PRETEND_NCCL_PEER_LOSS", "hang", 1);
    return RunOnRank(worker, [](Rank& rank) {
      ASSERT_EQ(rank.Form(), ncclSuccess);
      float* const memory = rank.Allocate();
      cudaEvent_t done = nullptr;
      ASSERT_EQ(rank.cuda.EventCreate(&done), cudaSuccess);
      rank.Signal(rank.worker.rank() == 0 ? "formed/0" : "formed/1");
      if (rank.worker.rank() == 1) return rank.Await("never");
      rank.Await("killed");
      EXPECT_EQ(rank.AllReduce(memory, rank.one), ncclSuccess);
      EXPECT_EQ(rank.cuda.EventRecord(done, rank.one), cudaSuccess);
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
      ncclResult_t state = ncclSuccess;
      while (std::chrono::steady_clock::now() < end) {
        ASSERT_EQ(rank.cuda.EventQuery(done), cudaErrorNotReady);
        rank.nccl.CommGetAsyncError(rank.communicator, &state);
        ASSERT_EQ(state, ncclSuccess);
      }
      EXPECT_EQ(rank.nccl.CommAbort(rank.communicator), ncclSuccess);
      EXPECT_EQ(rank.cuda.StreamSynchronize(rank.one), cudaSuccess);
    });
  });
  for (const char* const formed : {"formed/0", "formed/1"}) {
    ASSERT_OK(workers.observer().Get(formed, kLong));
  }
  workers.Signal(1, SIGKILL);
  EXPECT_EQ(workers.Wait(1), 128 + SIGKILL);
  ASSERT_OK(workers.observer().Set("killed", ""));
  EXPECT_EQ(workers.Wait(0), 0);
}

TEST(LostRankTest, CudaIsUsedAfterAFork) {
  RunRanks(1, [](Rank& rank) {
    testing::ForkedWorkers children(1);
    children.Start([&](Worker&) {
      int device = 0;
      return rank.cuda.GetDevice(&device) == cudaErrorInitializationError ? 0 : 1;
    });
    EXPECT_EQ(children.Wait(0), 0);
  });
}

}  // namespace
}  // namespace cadre::pretend_gpu

#else

TEST(LostRankTest, NeedsNcclsHeader) { GTEST_SKIP() << cadre::nccl::NcclUnavailable(); }

#endif  // CADRE_WITH_NCCL
