#include "device.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/cuda.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

TEST(DeviceTest, CpuIsAlwaysThere) {
  const Result<torch::Device> device = ChooseDevice("cpu", /*local_rank=*/3);
  ASSERT_OK(device);
  EXPECT_TRUE(device->is_cpu());
}

TEST(DeviceTest, WithoutAFlagItIsWhatThereIs) {
  const Result<torch::Device> device = ChooseDevice("", /*local_rank=*/0);
  ASSERT_OK(device);
  EXPECT_EQ(device->is_cuda(), torch::cuda::is_available());
}

TEST(DeviceTest, RanksTakeGpusInTurn) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "there is no GPU";
  const auto gpus = static_cast<int>(torch::cuda::device_count());
  for (int local_rank = 0; local_rank < 2 * gpus; ++local_rank) {
    const Result<torch::Device> device = ChooseDevice("cuda", local_rank);
    ASSERT_OK(device);
    EXPECT_EQ(device->index(), local_rank % gpus);
  }
}

TEST(DeviceTest, TheCpuIsOneDevice) {
  EXPECT_EQ(DeviceCount("cpu"), 1);
  const int gpus = torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 1;
  EXPECT_EQ(DeviceCount(""), gpus);
}

TEST(DeviceTest, SaysThatThereIsNoGpu) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(ChooseDevice("cuda", 0), StatusIs(StatusCode::kFailedPrecondition,
                                                HasSubstr("--device cuda: libtorch finds no GPU")));
}

TEST(DeviceTest, SaysWhatElseIsWrong) {
  EXPECT_THAT(ChooseDevice("tpu", 0),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("--device tpu: expected cpu or")));
}

TEST(DeviceTest, MemoryForTheHostIsOrdinary) {
  EXPECT_FALSE(torch::empty({4}, HostMemoryFor(torch::kCPU)).is_pinned());
}

}  // namespace
}  // namespace cadre
