// Ranks for tests of the NCCL communicator: processes that share the machine's one GPU, real or
// fake. Each claims to be another host (NCCL_HOSTID), so they communicate over sockets.
#ifndef CADRE_WORKER_RUNTIME_NCCL_NCCL_RANKS_FOR_TEST_H_
#define CADRE_WORKER_RUNTIME_NCCL_NCCL_RANKS_FOR_TEST_H_

#include <stdlib.h>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker_runtime/cuda/device.h"
#include "worker_runtime/nccl/nccl_communicator.h"
#include "worker_runtime/testing/forked_workers.h"

namespace cadre::nccl {

inline constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);
inline constexpr int kSkipped = 77;
// The store key under which a rank writes why it skips the test.
inline constexpr char kReason[] = "why_skipped";

// Elements in the memory of the GPU.
template <typename T>
class OnGpu {
 public:
  OnGpu(Communicator& world, const std::vector<T>& values, DataType type)
      : count_(values.size()), type_(type) {
    auto memory = world.AllocateBuffer(count_ * sizeof(T));
    EXPECT_OK(memory);
    if (memory.ok()) memory_ = *std::move(memory);
    EXPECT_OK(cuda::CopyToCudaDevice(memory_.get(), values.data(), count_ * sizeof(T), nullptr));
  }
  Buffer buffer() const { return {memory_.get(), count_, type_}; }
  std::vector<T> values() const {
    std::vector<T> result(count_);
    EXPECT_OK(cuda::CopyFromCudaDevice(result.data(), memory_.get(), count_ * sizeof(T), nullptr));
    return result;
  }

 private:
  std::shared_ptr<void> memory_;
  const size_t count_;
  const DataType type_;
};

using Floats = OnGpu<float>;
inline Floats Make(Communicator& world, std::vector<float> values) {
  return Floats(world, values, DataType::kFloat32);
}

inline int Skip(Worker& worker, const Status& reason) {
  EXPECT_OK(worker.Set(kReason, reason.ToString()));
  return kSkipped;
}

using Body = std::function<void(Worker&, NcclCommunicator&)>;

inline int RunRank(Worker& worker, std::chrono::nanoseconds timeout, const Body& body) {
  setenv("NCCL_HOSTID", absl::StrCat("rank", worker.rank()).c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_ALGO", "Ring", 1);
  setenv("NCCL_PROTO", "Simple", 1);
  const auto devices = cuda::CountCudaDevices();
  if (!devices.ok()) return Skip(worker, devices.status());
  NcclOptions options;
  options.timeout = timeout;
  options.device = 0;
  auto world = ConnectNccl(worker, options);
  if (world.status().code() == StatusCode::kUnimplemented ||
      world.status().code() == StatusCode::kNotFound) {
    return Skip(worker, world.status());
  }
  EXPECT_OK(world);
  if (!world.ok()) return 1;
  const cuda::CudaDeviceScope scope(0);
  body(worker, **world);
  return ::testing::Test::HasFailure() ? 1 : 0;
}

// Runs `body` in `ranks` processes. This process must not touch CUDA, which does not survive fork.
inline void RunRanks(int ranks, const Body& body, std::chrono::nanoseconds timeout = kLong) {
  testing::ForkedWorkers workers(ranks);
  workers.Start([&](Worker& worker) { return RunRank(worker, timeout, body); });
  const int result = workers.WaitForAll();
  if (result == kSkipped) {
    const auto reason = workers.observer().Get(kReason, kLong);
    GTEST_SKIP() << reason.value_or("a rank skipped");
  }
  EXPECT_EQ(result, 0);
}

}  // namespace cadre::nccl

#endif  // CADRE_WORKER_RUNTIME_NCCL_NCCL_RANKS_FOR_TEST_H_
