#include "worker_runtime/cuda/device.h"

#include <chrono>
#include <string>

#include "base/status_matchers.h"

namespace cadre::cuda {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// Values of cudaError_t, as numbers because the test is compiled without CUDA too.
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInsufficientDriver = 35;
constexpr int kIllegalAddress = 700;

bool HasRuntime() {
  const StatusCode code = CountCudaDevices().status().code();
  return code != StatusCode::kUnimplemented && code != StatusCode::kNotFound;
}

TEST(CudaStatusTest, SaysWhatAndWhyInCudasWords) {
  EXPECT_OK(CudaStatus(0, "nothing"));
  if (!HasRuntime()) GTEST_SKIP() << CountCudaDevices().status();
  EXPECT_THAT(CudaStatus(kOutOfMemory, "allocating 8 bytes"),
              StatusIs(StatusCode::kResourceExhausted, "allocating 8 bytes: out of memory"));
  EXPECT_THAT(CudaStatus(kInvalidValue, "x"),
              StatusIs(StatusCode::kInvalidArgument, "x: invalid argument"));
  EXPECT_THAT(
      CudaStatus(kInsufficientDriver, "x"),
      StatusIs(StatusCode::kFailedPrecondition, HasSubstr("driver version is insufficient")));
  EXPECT_THAT(CudaStatus(kIllegalAddress, "x"),
              StatusIs(StatusCode::kInternal, HasSubstr("illegal memory access")));
}

TEST(CudaDeviceTest, SaysWhyThereIsNoGpu) {
  const auto devices = CountCudaDevices();
  if (devices.ok()) GTEST_SKIP() << *devices << " GPUs are here";
  if (!HasRuntime()) GTEST_SKIP() << devices.status();
  EXPECT_THAT(devices, StatusIs(StatusCode::kFailedPrecondition,
                                AnyOf(HasSubstr("no NVIDIA driver is installed here"),
                                      HasSubstr("the driver is for CUDA"))));
  // All other calls return errors as well.
  EXPECT_THAT(CudaStream::Create(), StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_THAT(CudaEvent::Create(), StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_THAT(AllocateOnCudaDevice(8), StatusIs(StatusCode::kFailedPrecondition));
  const CudaDeviceScope scope(0);
  EXPECT_THAT(scope.status(), StatusIs(StatusCode::kFailedPrecondition));
}

TEST(CudaDeviceTest, CopiesAndTimesWork) {
  const auto devices = CountCudaDevices();
  if (!devices.ok()) GTEST_SKIP() << devices.status();
  const CudaDeviceScope scope(0);
  ASSERT_OK(scope.status());
  auto stream = CudaStream::Create();
  auto begin = CudaEvent::Create(), end = CudaEvent::Create();
  ASSERT_OK(stream);
  ASSERT_OK(begin);
  ASSERT_OK(end);
  const std::string sent = "over there and back";
  auto memory = AllocateOnCudaDevice(sent.size());
  ASSERT_OK(memory);
  void* const data = memory->get();
  std::string received(sent.size(), ' ');
  ASSERT_OK((*begin)->Record((*stream)->handle()));
  ASSERT_OK(FillOnCudaDevice(data, 'x', sent.size(), (*stream)->handle()));
  ASSERT_OK(CopyToCudaDevice(data, sent.data(), sent.size() - 1, (*stream)->handle()));
  ASSERT_OK(CopyFromCudaDevice(&received[0], data, sent.size(), (*stream)->handle()));
  ASSERT_OK((*end)->Record((*stream)->handle()));
  ASSERT_OK((*stream)->Synchronize());
  EXPECT_EQ(received, "over there and bacx");
  const auto happened = (*end)->Happened();
  ASSERT_OK(happened);
  EXPECT_TRUE(*happened);
  const auto duration = (*end)->Since(**begin);
  ASSERT_OK(duration);
  EXPECT_GT(*duration, std::chrono::nanoseconds(0));
}

}  // namespace
}  // namespace cadre::cuda
