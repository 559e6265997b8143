// Ranks with a communicator of the host connect their GPUs over it. This runs on the pretend GPU,
// which also checks the order of the operations on a stream.
#include <stdlib.h>

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/connect.h"
#include "cadre/nccl/connect.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/cuda/device.h"
#include "worker_runtime/testing/forked_workers.h"

namespace cadre::nccl {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);
constexpr size_t kCount = 1000;

NcclOptions OnDevice(int device) {
  NcclOptions options;
  options.timeout = kLong;
  options.device = device;
  return options;
}

void OnEachRank(int ranks, const std::function<void(Communicator&)>& body) {
  testing::ForkedWorkers workers(ranks);
  workers.Start([&](Worker& worker) {
    unsetenv("NCCL_HOSTID");
    CommunicatorOptions options;
    options.timeout = kLong;
    auto host = ConnectCommunicator(worker, options);
    EXPECT_OK(host);
    if (host.ok()) body(**host);
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(workers.WaitForAll(), 0);
}

TEST(NcclOverHost, ConnectsTheRanksGpus) {
  for (const int ranks : {1, 2, 4}) {
    OnEachRank(ranks, [](Communicator& host) {
      auto gpus = ConnectNccl(host, OnDevice(host.rank()));
      ASSERT_OK(gpus);
      EXPECT_EQ((*gpus)->rank(), host.rank());
      EXPECT_EQ((*gpus)->size(), host.size());
      EXPECT_OK((*gpus)->Barrier()->Wait(kLong));
    });
  }
}

// The test does not wait for the operations: later work on the stream runs after them.
TEST(NcclOverHost, OperationsAreOnTheCallersStreamWhenTheCallReturns) {
  OnEachRank(2, [](Communicator& host) {
    const int device = host.rank();
    const cuda::CudaDeviceScope scope(device);
    auto stream = cuda::CudaStream::Create();
    ASSERT_OK(stream);
    const cuda::CudaStreamHandle handle = (*stream)->handle();
    NcclOptions options = OnDevice(device);
    options.stream = handle;
    auto gpus = ConnectNccl(host, options);
    ASSERT_OK(gpus);
    auto memory = (*gpus)->AllocateBuffer(kCount * sizeof(float));
    ASSERT_OK(memory);
    std::vector<float> values(kCount, 1.0f + static_cast<float>(host.rank()));
    const size_t bytes = values.size() * sizeof(float);
    ASSERT_OK(cuda::CopyToCudaDevice(memory->get(), values.data(), bytes, handle));
    for (int call = 0; call < 3; ++call) {
      (*gpus)->AllReduce({memory->get(), kCount, DataType::kFloat32}, {ReduceOp::kSum, 0.5});
    }
    std::vector<float> result(kCount);
    ASSERT_OK(cuda::CopyFromCudaDevice(result.data(), memory->get(), bytes, handle));
    ASSERT_OK((*stream)->Synchronize());
    EXPECT_THAT(result, Each(1.5f));
  });
}

// No rank knows the others' counts. NCCL's own error reaches all of them.
TEST(NcclOverHost, CountsThatDifferBetweenTheRanks) {
  OnEachRank(2, [](Communicator& host) {
    const cuda::CudaDeviceScope scope(host.rank());
    auto gpus = ConnectNccl(host, OnDevice(host.rank()));
    ASSERT_OK(gpus);
    auto memory = (*gpus)->AllocateBuffer(8 * sizeof(float));
    ASSERT_OK(memory);
    // Rank 0 expects one of four elements, but rank 1 expects that rank 0 gets three.
    const std::vector<size_t> counts =
        host.rank() == 0 ? std::vector<size_t>{1, 3} : std::vector<size_t>{3, 1};
    float* const floats = static_cast<float*>(memory->get());
    const auto work =
        (*gpus)->ReduceScatterVarying({floats, 4, DataType::kFloat32},
                                      {floats + 4, 1, DataType::kFloat32}, counts, ReduceOp::kSum);
    const Status status = work->Wait(kLong);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("rank 0 ncclReduce (sum) to rank 0 of 1 float32"),
                      HasSubstr("rank 1 ncclReduce (sum) to rank 0 of 3 float32")));
  });
}

// Fault (collective): Two ranks have the same GPU -> All ranks get an error that names both
TEST(NcclOverHost, TwoRanksWithOneGpuHearItBoth) {
  OnEachRank(2, [](Communicator& host) {
    const Status status = ConnectNccl(host, OnDevice(0)).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("ranks 0 and 1 have the same GPU"), HasSubstr("0000:00:00.0")));
    // The host's communicator still works.
    EXPECT_OK(host.Barrier()->Wait(kLong));
  });
}

TEST(NcclOverHost, ARankWithoutItsGpuIsNamedToAll) {
  OnEachRank(2, [](Communicator& host) {
    const Status status = ConnectNccl(host, OnDevice(host.rank() == 1 ? 7 : 0)).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("rank 1: there is no GPU 7: 4 are visible"));
    EXPECT_OK(host.Barrier()->Wait(kLong));
  });
}

}  // namespace
}  // namespace cadre::nccl
