#include "cadre/torch/autocast.h"

#include <thread>

#include "gtest/gtest.h"
#include "torch/nn/modules/linear.h"
#include "torch/utils.h"
#include "torch/version.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"

namespace cadre::nn {
namespace {

constexpr bool kNew = TORCH_VERSION_MAJOR >= 2;
constexpr bool kHasDevices = TORCH_VERSION_MAJOR > 2 ||
                             (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4);

torch::ScalarType TypeOfLinear(torch::Device device = torch::kCPU) {
  torch::nn::Linear linear(4, 3);
  linear->to(device);
  return linear(torch::ones({2, 4}).to(device)).scalar_type();
}

TEST(Autocast, ComputesIn16BitsWhileItLives) {
  EXPECT_EQ(TypeOfLinear(), torch::kFloat32);
  {
    const Autocast outer(torch::kCPU, torch::kBFloat16);
    EXPECT_EQ(TypeOfLinear(), torch::kBFloat16);
    {
      const Autocast off(torch::kCPU, torch::kBFloat16, /*enabled=*/false);
      EXPECT_EQ(TypeOfLinear(), torch::kFloat32);
    }
    EXPECT_EQ(TypeOfLinear(), torch::kBFloat16);
  }
  EXPECT_EQ(TypeOfLinear(), torch::kFloat32);
}

TEST(Autocast, Float16OnTheHost) {
  if (!kNew) GTEST_SKIP() << "libtorch 1.13 has no kernels for it";
  const Autocast half(torch::kCPU, torch::kFloat16);
  EXPECT_EQ(TypeOfLinear(), torch::kFloat16);
}

TEST(Autocast, OnADevice) {
  pretend::Install(1);
  const torch::Device device = pretend::Device();
  ASSERT_EQ(HasAutocast(device.type()), kHasDevices);
  if (!kHasDevices) {
    EXPECT_THROW(Autocast(device.type(), torch::kFloat16), c10::Error);
    EXPECT_FALSE(CurrentAutocast(device.type()).enabled);
    return;
  }
  const Autocast half(device.type(), torch::kFloat16);
  EXPECT_EQ(TypeOfLinear(device), torch::kFloat16);
  EXPECT_EQ(TypeOfLinear(), torch::kFloat32);
}

TEST(Autocast, ForgetsTheCopiesOfParametersAtItsEnd) {
  torch::nn::Linear linear(4, 3);
  const torch::Tensor ones = torch::ones({2, 4});
  const auto with_autocast = [&] {
    const Autocast half(torch::kCPU, torch::kBFloat16);
    return linear(ones).detach().to(torch::kFloat32);
  };
  const torch::Tensor before = with_autocast();
  {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : linear->parameters()) parameter.mul_(2);
  }
  EXPECT_TRUE(with_autocast().equal(before * 2));
}

TEST(Autocast, IsOfOneThreadAndCanBeHandedOn) {
  AutocastState seen;
  {
    const Autocast half(torch::kCPU, torch::kBFloat16);
    seen = CurrentAutocast(torch::kCPU);
    std::thread([&seen] {
      EXPECT_EQ(TypeOfLinear(), torch::kFloat32);
      const Autocast as_there(torch::kCPU, seen);
      EXPECT_EQ(TypeOfLinear(), torch::kBFloat16);
    }).join();
  }
  EXPECT_TRUE(seen.enabled);
  EXPECT_EQ(seen.type, torch::kBFloat16);
  EXPECT_FALSE(CurrentAutocast(torch::kCPU).enabled);
}

TEST(Autocast, AnotherTypeIsAnError) {
  EXPECT_THROW(Autocast(torch::kCPU, torch::kInt32), c10::Error);
  EXPECT_EQ(TypeOfLinear(), torch::kFloat32);
}

}  // namespace
}  // namespace cadre::nn
