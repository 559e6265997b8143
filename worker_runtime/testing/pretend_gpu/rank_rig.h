// Runs one rank of a test of the pretend GPU as a process. Compiled only where NCCL's header is.
#ifndef CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_RANK_RIG_H_
#define CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_RANK_RIG_H_

#include "worker_runtime/nccl/nccl_api.h"

#ifdef CADRE_WITH_NCCL

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "worker_runtime/cuda/cuda_api.h"
#include "worker_runtime/testing/forked_workers.h"

namespace cadre::pretend_gpu {

inline constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);
inline constexpr size_t kCount = 8;

// One rank's side of a test: GPU `rank`, two streams, and, after Form(), a communicator.
class Rank {
 public:
  explicit Rank(Worker& worker)
      : worker(worker), cuda(**cuda::LoadCudaApi()), nccl(**nccl::LoadNcclApi()) {
    EXPECT_EQ(cuda.SetDevice(worker.rank()), cudaSuccess);
    for (cudaStream_t* const stream : {&one, &other}) {
      EXPECT_EQ(cuda.StreamCreateWithPriority(stream, cudaStreamNonBlocking, 0), cudaSuccess);
    }
  }

  ncclResult_t Form() {
    ncclUniqueId id = {};
    if (worker.rank() == 0) {
      const auto function = nccl::NcclFunction("ncclGetUniqueId");
      EXPECT_OK(function);
      reinterpret_cast<decltype(&ncclGetUniqueId)> (*function)(&id);
      EXPECT_OK(worker.Set("id", std::string(id.internal, sizeof(id.internal))));
    }
    const auto text = worker.Get("id", kLong);
    EXPECT_OK(text);
    memcpy(id.internal, text->data(), sizeof(id.internal));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    return nccl.CommInitRankConfig(&communicator, worker.world_size(), id, worker.rank(), &config);
  }

  float* Allocate(size_t count = kCount) {
    void* memory = nullptr;
    EXPECT_EQ(cuda.Malloc(&memory, count * sizeof(float)), cudaSuccess);
    return static_cast<float*>(memory);
  }
  // Copies all elements to the host in the order of `stream`.
  std::vector<float> Read(const float* memory, cudaStream_t stream) {
    std::vector<float> values(kCount);
    cuda.MemcpyAsync(values.data(), memory, kCount * sizeof(float), cudaMemcpyDeviceToHost, stream);
    return values;
  }
  ncclResult_t AllReduce(float* memory, cudaStream_t stream) {
    return nccl.AllReduce(memory, memory, kCount, ncclFloat32, ncclSum, communicator, stream);
  }
  // Waits until the communicator has an asynchronous error, and returns it.
  ncclResult_t WaitForError() {
    ncclResult_t result = ncclSuccess;
    while (result == ncclSuccess || result == ncclInProgress) {
      EXPECT_EQ(nccl.CommGetAsyncError(communicator, &result), ncclSuccess);
      std::this_thread::yield();
    }
    return result;
  }
  std::string Mistake() const { return cuda.GetErrorString(cudaErrorIllegalAddress); }
  bool MadeNone() const { return cuda.StreamSynchronize(one) == cudaSuccess; }

  void Signal(const char* name) { EXPECT_OK(worker.Set(name, "")); }
  void Await(const char* name) { EXPECT_OK(worker.Get(name, kLong)); }

  Worker& worker;
  const cuda::CudaApi& cuda;
  const nccl::NcclApi& nccl;
  cudaStream_t one = nullptr;
  cudaStream_t other = nullptr;
  ncclComm_t communicator = nullptr;
};

using Body = std::function<void(Rank&)>;

inline int RunOnRank(Worker& worker, const Body& body) {
  Rank rank(worker);
  body(rank);
  return ::testing::Test::HasFailure() ? 1 : 0;
}

inline void RunRanks(int ranks, const Body& body) {
  testing::ForkedWorkers workers(ranks);
  workers.Start([&](Worker& worker) { return RunOnRank(worker, body); });
  EXPECT_EQ(workers.WaitForAll(), 0);
}

// Runs `body` on two ranks that have formed a communicator.
inline void RunPair(const Body& body) {
  RunRanks(2, [&](Rank& rank) {
    ASSERT_EQ(rank.Form(), ncclSuccess);
    body(rank);
  });
}

inline void Hold(cudaStream_t stream, bool hold) {
  using Function = void (*)(cudaStream_t, int);
  const auto function = nccl::NcclFunction("pretendGpuHold");
  ASSERT_OK(function);
  reinterpret_cast<Function> (*function)(stream, hold ? 1 : 0);
}

}  // namespace cadre::pretend_gpu

#endif  // CADRE_WITH_NCCL

#endif  // CADRE_WORKER_RUNTIME_TESTING_PRETEND_GPU_RANK_RIG_H_
