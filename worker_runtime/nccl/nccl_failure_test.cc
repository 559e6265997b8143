// Tests as much of the NCCL path as is possible without a GPU: NCCL is really loaded and called.
#include <stdlib.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "cadre/nccl/connect.h"
#include "cadre/nccl/unique_id.h"
#include "worker_runtime/nccl/nccl_api.h"
#include "worker_runtime/nccl/nccl_communicator.h"
#include "worker_runtime/nccl/nccl_handle.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::nccl {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kDeadline = std::chrono::seconds(20);

class NcclFailureTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { setenv("NCCL_SOCKET_IFNAME", "lo", 1); }
};

TEST(NcclVersionTextTest, ReadsBothWaysOfCounting) {
  EXPECT_EQ(NcclVersionText(22809), "2.28.9");
  EXPECT_EQ(NcclVersionText(21803), "2.18.3");
  EXPECT_EQ(NcclVersionText(2708), "2.7.8");
}

TEST_F(NcclFailureTest, EveryRankHearsWhyThereIsNoGpu) {
  const auto devices = cuda::CountCudaDevices();
  if (devices.ok()) GTEST_SKIP() << *devices << " GPUs are here";
  testing::InProcessWorkers workers(4);
  const MonoTime start = MonoNow();
  workers.Run([&](Worker& worker) {
    NcclOptions options;
    options.timeout = kDeadline;
    const Status status = ConnectNccl(worker, options).status();
    if (status.code() == StatusCode::kUnimplemented || status.code() == StatusCode::kNotFound) {
      EXPECT_THAT(std::string(status.message()), AnyOf(HasSubstr("NCCL"), HasSubstr("CUDA")));
      return;
    }
    EXPECT_THAT(status, StatusIs(StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("connecting communicator \"world\" as rank"),
                                       HasSubstr("CUDA driver"), HasSubstr("no NVIDIA driver"))));
  });
  EXPECT_LT(MonoNow() - start, absl::FromChrono(kDeadline));
}

TEST_F(NcclFailureTest, WhoHasAnIdHearsWhatIsWrong) {
  const std::string id(kNcclUniqueIdBytes, 'x');
  EXPECT_THAT(ConnectNccl("short", 0, 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("has 128 bytes, not 5")));
  for (const auto& [rank, size] : {std::pair<int, int>{-1, 2}, {2, 2}, {0, 0}}) {
    EXPECT_THAT(ConnectNccl(id, rank, size), StatusIs(StatusCode::kInvalidArgument));
  }
  if (cuda::CountCudaDevices().ok()) GTEST_SKIP() << "a GPU is here";
  NcclOptions options;
  options.name = "mine";
  options.timeout = kDeadline;
  const Status status = ConnectNccl(id, 0, 2, options).status();
  if (status.code() == StatusCode::kUnimplemented || status.code() == StatusCode::kNotFound) {
    EXPECT_THAT(std::string(status.message()), AnyOf(HasSubstr("NCCL"), HasSubstr("CUDA")));
    return;
  }
  EXPECT_THAT(status, StatusIs(StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("connecting communicator \"mine\" as rank 0 of 2"),
                                     HasSubstr("no NVIDIA driver"))));
}

#ifdef CADRE_WITH_NCCL

TEST_F(NcclFailureTest, TheTableIsFilledFromTheLibrary) {
  const auto api = LoadNcclApi();
  if (!api.ok()) GTEST_SKIP() << api.status();
  EXPECT_GE((*api)->version, 21400);
  EXPECT_NE((*api)->AllReduce, nullptr);
  EXPECT_EQ((*api)->CommSplit != nullptr, (*api)->version >= 21800);
  EXPECT_EQ((*api)->CommInitRankScalable != nullptr, (*api)->version >= 22300);
  RecordProperty("nccl", NcclVersionText((*api)->version));
}

TEST_F(NcclFailureTest, ErrorsKeepNcclsWords) {
  const auto api = LoadNcclApi();
  if (!api.ok()) GTEST_SKIP() << api.status();
  EXPECT_OK(NcclStatus(**api, ncclSuccess, nullptr, "x"));
  EXPECT_THAT(
      NcclStatus(**api, ncclRemoteError, nullptr, "ncclAllReduce"),
      StatusIs(StatusCode::kUnavailable, AllOf(HasSubstr("ncclAllReduce: "), HasSubstr("remote"))));
  EXPECT_THAT(NcclStatus(**api, ncclSystemError, nullptr, "x"), StatusIs(StatusCode::kUnavailable));
  EXPECT_THAT(NcclStatus(**api, ncclInvalidArgument, nullptr, "x"),
              StatusIs(StatusCode::kInvalidArgument));
  EXPECT_THAT(NcclStatus(**api, ncclInvalidUsage, nullptr, "x"),
              StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_THAT(NcclStatus(**api, ncclUnhandledCudaError, nullptr, "x"),
              StatusIs(StatusCode::kInternal));
}

TEST_F(NcclFailureTest, NcclItselfRefusesWithoutAGpuAndSaysWhy) {
  if (cuda::CountCudaDevices().ok()) GTEST_SKIP() << "a GPU is here";
  const auto api = LoadNcclApi();
  if (!api.ok()) GTEST_SKIP() << api.status();
  std::vector<std::string> ids;
  for (int i = 0; i < 2; ++i) {
    const auto id = MintNcclUniqueId();
    ASSERT_OK(id);
    ids.push_back(*id);
  }
  const MonoTime deadline = MonoNow() + kDeadline;
  EXPECT_THAT(NcclHandle::Form(**api, {0, 2, 0}, {ids[0]}, deadline, nullptr),
              StatusIs(StatusCode::kInternal, HasSubstr("CUDA driver version")));
  EXPECT_THAT(NcclHandle::Form(**api, {0, 1, 0}, {ids[1]}, deadline, nullptr),
              StatusIs(StatusCode::kInternal, HasSubstr("ncclCommInitRankConfig")));
  if ((*api)->CommInitRankScalable != nullptr) {
    EXPECT_THAT(NcclHandle::Form(**api, {0, 4, 0}, ids, deadline, nullptr),
                StatusIs(StatusCode::kInternal, HasSubstr("ncclCommInitRankScalable")));
  }
  EXPECT_LT(MonoNow(), deadline);
  EXPECT_THAT(NcclHandle::Form(**api, {0, 1, 0}, {}, deadline, nullptr),
              StatusIs(StatusCode::kInvalidArgument));
}

#endif  // CADRE_WITH_NCCL

}  // namespace
}  // namespace cadre::nccl
