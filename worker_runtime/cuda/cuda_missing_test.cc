// Runs as on a machine without CUDA's runtime. It is a test of its own because a process loads the
// library only once.
#include <stdlib.h>

#include "base/status_matchers.h"
#include "worker_runtime/cuda/device.h"

namespace cadre::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CudaMissingTest, SaysWhereItWasLookedForAndWhatToDo) {
  setenv("CADRE_CUDART_LIBRARY", "/nowhere/libcudart.so.13", 1);
  const auto devices = CountCudaDevices();
  if (devices.status().code() == StatusCode::kUnimplemented) GTEST_SKIP() << devices.status();
  const auto says_where = StatusIs(
      StatusCode::kNotFound,
      AllOf(HasSubstr("CUDA's runtime was not found as /nowhere/libcudart.so.13"),
            HasSubstr("cannot open shared object file"), HasSubstr("CADRE_CUDART_LIBRARY")));
  EXPECT_THAT(devices, says_where);
  EXPECT_THAT(CurrentCudaDevice(), says_where);
  EXPECT_THAT(SetCudaDevice(0), says_where);
  EXPECT_THAT(CudaDeviceScope(0).status(), says_where);
  EXPECT_THAT(CudaStream::Create(), says_where);
  EXPECT_THAT(CudaEvent::Create(), says_where);
  EXPECT_THAT(AllocateOnCudaDevice(8), says_where);
  EXPECT_THAT(FillOnCudaDevice(nullptr, 0, 8, nullptr), says_where);
}

}  // namespace
}  // namespace cadre::cuda
