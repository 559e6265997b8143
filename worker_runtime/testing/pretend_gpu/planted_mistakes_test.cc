// The pretend GPU and NCCL detect mistakes whose effect is undefined on real ones; each test runs
// in its own processes. Correct calls beside them are not reported. The second part tests a
// communicator that has lost a rank.
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "worker_runtime/testing/pretend_gpu/rank_rig.h"

#ifdef CADRE_WITH_NCCL

namespace cadre::pretend_gpu {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(PlantedMistakesTest, NoneWhereNoneIsMade) {
  RunPair([](Rank& rank) {
    float* const memory = rank.Allocate();
    float* const copy = rank.Allocate();
    cudaEvent_t event = nullptr;
    ASSERT_EQ(rank.cuda.EventCreate(&event), cudaSuccess);
    // Uses are ordered in a stream, from stream to stream by an event, and after the host has
    // waited.
    const std::vector<float> ones(kCount, 1);
    EXPECT_EQ(rank.cuda.MemcpyAsync(memory, ones.data(), kCount * sizeof(float),
                                    cudaMemcpyHostToDevice, rank.one),
              cudaSuccess);
    EXPECT_EQ(rank.AllReduce(memory, rank.one), ncclSuccess);
    EXPECT_EQ(rank.cuda.EventRecord(event, rank.one), cudaSuccess);
    EXPECT_EQ(rank.cuda.StreamWaitEvent(rank.other, event, 0), cudaSuccess);
    EXPECT_EQ(rank.cuda.MemcpyAsync(copy, memory, kCount * sizeof(float), cudaMemcpyDeviceToDevice,
                                    rank.other),
              cudaSuccess);
    EXPECT_EQ(rank.cuda.StreamSynchronize(rank.other), cudaSuccess);
    EXPECT_THAT(rank.Read(copy, rank.one), Each(2));
    // One group sends and receives.
    const int peer = 1 - rank.worker.rank();
    EXPECT_EQ(rank.nccl.GroupStart(), ncclSuccess);
    EXPECT_EQ(rank.nccl.Send(memory, kCount, ncclFloat32, peer, rank.communicator, rank.one),
              ncclSuccess);
    EXPECT_EQ(rank.nccl.Recv(copy, kCount, ncclFloat32, peer, rank.communicator, rank.one),
              ncclSuccess);
    EXPECT_EQ(rank.nccl.GroupEnd(), ncclSuccess);
    EXPECT_THAT(rank.Read(copy, rank.one), Each(2));
    EXPECT_EQ(rank.cuda.Free(memory), cudaSuccess);
    EXPECT_EQ(rank.nccl.CommFinalize(rank.communicator), ncclSuccess);
    EXPECT_EQ(rank.nccl.CommDestroy(rank.communicator), ncclSuccess);
    EXPECT_TRUE(rank.MadeNone());
  });
}

TEST(PlantedMistakesTest, AnEventIsNotWaitedFor) {
  RunRanks(1, [](Rank& rank) {
    float* const memory = rank.Allocate();
    Hold(rank.one, true);
    EXPECT_EQ(rank.cuda.MemsetAsync(memory, 0, kCount * sizeof(float), rank.one), cudaSuccess);
    // The read returns the old content, and the mistake is reported.
    for (const float value : rank.Read(memory, rank.other)) EXPECT_NE(value, value);
    EXPECT_THAT(rank.Mistake(), AllOf(HasSubstr("reads memory that cudaMemsetAsync on"),
                                      HasSubstr("makes it wait")));
    Hold(rank.one, false);
  });
}

TEST(PlantedMistakesTest, ABufferIsReusedEarly) {
  RunPair([](Rank& rank) {
    if (rank.worker.rank() == 1) return rank.Await("checked");
    float* const memory = rank.Allocate();
    EXPECT_EQ(rank.AllReduce(memory, rank.one), ncclSuccess);
    EXPECT_EQ(rank.cuda.MemsetAsync(memory, 0, sizeof(float), rank.other), cudaErrorIllegalAddress);
    EXPECT_THAT(rank.Mistake(), HasSubstr("writes memory that ncclAllReduce (sum) of 8 float32"));
    rank.Signal("checked");
  });
}

TEST(PlantedMistakesTest, ABufferIsFreedEarly) {
  RunPair([](Rank& rank) {
    if (rank.worker.rank() == 1) return rank.Await("checked");
    float* const memory = rank.Allocate();
    EXPECT_EQ(rank.AllReduce(memory, rank.one), ncclSuccess);
    EXPECT_EQ(rank.cuda.Free(memory), cudaErrorIllegalAddress);
    EXPECT_THAT(rank.Mistake(), HasSubstr("freed while ncclAllReduce (sum) of 8 float32"));
    rank.Signal("checked");
  });
}

TEST(PlantedMistakesTest, FreedMemoryIsUsed) {
  RunPair([](Rank& rank) {
    float* const memory = rank.Allocate();
    EXPECT_EQ(rank.cuda.Free(memory), cudaSuccess);
    EXPECT_EQ(rank.AllReduce(memory, rank.one), ncclInvalidArgument);
    EXPECT_THAT(rank.Mistake(), HasSubstr("was freed before"));
  });
}

TEST(PlantedMistakesTest, ABufferIsTooShort) {
  RunPair([](Rank& rank) {
    EXPECT_EQ(rank.AllReduce(rank.Allocate(kCount - 1), rank.one), ncclInvalidArgument);
    EXPECT_THAT(rank.Mistake(), HasSubstr("is 4 bytes too short"));
  });
}

TEST(PlantedMistakesTest, HostMemoryIsReduced) {
  RunPair([](Rank& rank) {
    std::vector<float> values(kCount);
    EXPECT_EQ(rank.AllReduce(values.data(), rank.one), ncclInvalidArgument);
    EXPECT_THAT(rank.Mistake(), HasSubstr("is not memory of a GPU"));
  });
}

TEST(PlantedMistakesTest, TheHostReads) {
  testing::ForkedWorkers workers(1);
  workers.Start([](Worker& worker) {
    signal(SIGSEGV, SIG_DFL);  // sanitizers have a handler of their own
    Rank rank(worker);
    const volatile float* const memory = rank.Allocate();
    return memory[0] == 0 ? 0 : 1;
  });
  EXPECT_EQ(workers.Wait(0), 128 + SIGSEGV);
}

// The ranks make different calls that do not match; both report the same mistake.
void ExpectDisagreement(const std::function<void(Rank&, float*)>& call, const std::string& text) {
  RunPair([&](Rank& rank) {
    float* const memory = rank.Allocate();
    call(rank, memory);
    EXPECT_EQ(rank.WaitForError(), ncclInvalidUsage);
    EXPECT_THAT(std::string(rank.nccl.GetLastError(rank.communicator)), HasSubstr(text));
    EXPECT_EQ(rank.nccl.CommAbort(rank.communicator), ncclSuccess);
    EXPECT_TRUE(rank.MadeNone());
  });
}

TEST(PlantedMistakesTest, CountsDiffer) {
  ExpectDisagreement(
      [](Rank& rank, float* memory) {
        rank.nccl.AllReduce(memory, memory, rank.worker.rank() == 0 ? 8 : 4, ncclFloat32, ncclSum,
                            rank.communicator, rank.one);
      },
      "rank 0 ncclAllReduce (sum) of 8 float32, rank 1 ncclAllReduce (sum) of 4 float32");
}

TEST(PlantedMistakesTest, TypesDiffer) {
  ExpectDisagreement(
      [](Rank& rank, float* memory) {
        rank.nccl.AllGather(memory, memory, 4, rank.worker.rank() == 0 ? ncclFloat32 : ncclInt32,
                            rank.communicator, rank.one);
      },
      "rank 0 ncclAllGather of 4 float32, rank 1 ncclAllGather of 4 int32");
}

TEST(PlantedMistakesTest, ReductionsDiffer) {
  ExpectDisagreement(
      [](Rank& rank, float* memory) {
        rank.nccl.ReduceScatter(memory, memory, 4, ncclFloat32,
                                rank.worker.rank() == 0 ? ncclSum : ncclMax, rank.communicator,
                                rank.one);
      },
      "rank 0 ncclReduceScatter (sum) of 4 float32, rank 1 ncclReduceScatter (maximum)");
}

TEST(PlantedMistakesTest, RootsDiffer) {
  ExpectDisagreement(
      [](Rank& rank, float* memory) {
        rank.nccl.Broadcast(memory, memory, 4, ncclFloat32, rank.worker.rank(), rank.communicator,
                            rank.one);
      },
      "ncclBroadcast from rank 0 of 4 float32, rank 1 ncclBroadcast from rank 1");
}

TEST(PlantedMistakesTest, OperationsAreCalledInAnotherOrder) {
  ExpectDisagreement(
      [](Rank& rank, float* memory) {
        if (rank.worker.rank() == 0) rank.AllReduce(memory, rank.one);
        rank.nccl.Broadcast(memory, memory, 4, ncclFloat32, 0, rank.communicator, rank.one);
        if (rank.worker.rank() == 1) rank.AllReduce(memory, rank.one);
      },
      "rank 0 ncclAllReduce (sum) of 8 float32, rank 1 ncclBroadcast from rank 0");
}

TEST(PlantedMistakesTest, MoreIsSentThanReceived) {
  ExpectDisagreement(
      [](Rank& rank, float* memory) {
        if (rank.worker.rank() == 0) {
          rank.nccl.Send(memory, 8, ncclFloat32, 1, rank.communicator, rank.one);
        } else {
          rank.nccl.Recv(memory, 4, ncclFloat32, 0, rank.communicator, rank.one);
        }
      },
      "ncclSend of 8 float32, ncclRecv of 4 float32");
}

TEST(PlantedMistakesTest, ACallAfterTheAbort) {
  RunPair([](Rank& rank) {
    float* const memory = rank.Allocate();
    EXPECT_EQ(rank.nccl.CommAbort(rank.communicator), ncclSuccess);
    EXPECT_EQ(rank.AllReduce(memory, rank.one), ncclInvalidArgument);
    EXPECT_THAT(rank.Mistake(), HasSubstr("a communicator that was aborted before"));
  });
}

TEST(PlantedMistakesTest, TwoRanksOnOneGpu) {
  RunRanks(2, [](Rank& rank) {
    EXPECT_EQ(rank.cuda.SetDevice(0), cudaSuccess);
    EXPECT_EQ(rank.Form(), ncclInvalidUsage);
    EXPECT_THAT(std::string(rank.nccl.GetLastError(rank.communicator)),
                HasSubstr("Duplicate GPU detected : rank 0 and rank 1"));
  });
}

TEST(PlantedMistakesTest, AGroupIsNotClosed) {
  RunPair([](Rank& rank) {
    EXPECT_EQ(rank.nccl.GroupStart(), ncclSuccess);
    EXPECT_EQ(rank.AllReduce(rank.Allocate(), rank.one), ncclSuccess);
    EXPECT_EQ(rank.cuda.StreamSynchronize(rank.one), cudaErrorIllegalAddress);
    EXPECT_THAT(rank.Mistake(), HasSubstr("ncclGroupEnd is missing"));
  });
}

TEST(PlantedMistakesTest, TwoThreadsAreInside) {
  RunPair([](Rank& rank) {
    if (rank.worker.rank() == 1) return rank.Await("checked");
    float* const memory = rank.Allocate();
    // This call waits for the other rank.
    std::thread first([&] {
      ncclComm_t child = nullptr;
      EXPECT_NE(rank.nccl.CommSplit(rank.communicator, 0, 0, &child, nullptr), ncclSuccess);
    });
    ncclResult_t state = ncclSuccess;
    while (state != ncclInProgress) rank.nccl.CommGetAsyncError(rank.communicator, &state);
    EXPECT_EQ(rank.AllReduce(memory, rank.one), ncclInvalidUsage);
    EXPECT_THAT(rank.Mistake(), HasSubstr("another thread is inside the communicator"));
    EXPECT_EQ(rank.nccl.CommAbort(rank.communicator), ncclSuccess);
    first.join();
    rank.Signal("checked");
  });
}

TEST(PlantedMistakesTest, AFactorIsOfAnotherType) {
  RunPair([](Rank& rank) {
    double factor = 2;
    ncclRedOp_t op;
    ASSERT_EQ(rank.nccl.RedOpCreatePreMulSum(&op, &factor, ncclFloat64, ncclScalarHostImmediate,
                                             rank.communicator),
              ncclSuccess);
    float* const memory = rank.Allocate();
    EXPECT_EQ(
        rank.nccl.AllReduce(memory, memory, kCount, ncclFloat32, op, rank.communicator, rank.one),
        ncclInvalidArgument);
    EXPECT_THAT(rank.Mistake(), HasSubstr("the operation was made for float64"));
  });
}

}  // namespace
}  // namespace cadre::pretend_gpu

#else

TEST(PlantedMistakesTest, NeedsNcclsHeader) { GTEST_SKIP() << cadre::nccl::NcclUnavailable(); }

#endif  // CADRE_WITH_NCCL

// Tests of a pretend communicator that has lost a rank, or whose ranks do not match.
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

// As with ranks that share memory: the loss of a rank is not detected, so running operations hang.
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
