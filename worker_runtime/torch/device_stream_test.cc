#include "cadre/torch/device_stream.h"

#include "c10/core/impl/VirtualGuardImpl.h"
#include "gtest/gtest.h"
#include "torch/utils.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"

namespace cadre::nn {
namespace {

using c10::impl::VirtualGuardImpl;

class DeviceStreamTest : public ::testing::Test {
 protected:
  DeviceStreamTest() { pretend::Install(2); }

  static c10::Stream Current() {
    return VirtualGuardImpl(pretend::Device().type()).getStream(pretend::Device());
  }
  static torch::Tensor Zeros() {
    torch::Tensor zeros = torch::zeros({1000}, torch::device(pretend::Device()));
    VirtualGuardImpl(pretend::Device().type()).synchronizeStream(Current());
    return zeros;
  }
  // On the host once `stream` is done.
  static torch::Tensor Read(const DeviceStream& stream, const torch::Tensor& tensor) {
    const DeviceStream::Scope on(stream);
    return tensor.cpu();
  }
};

TEST_F(DeviceStreamTest, SeesWhatItWaitedFor) {
  DeviceStream stream(pretend::Device());
  const torch::Tensor values = Zeros();
  pretend::Hold(Current(), true);
  values.add_(1);
  // The planted mistake: nobody waits.
  EXPECT_TRUE(Read(stream, values).equal(torch::zeros({1000})));
  stream.WaitFor(Current());
  const torch::Tensor host = EmptyPinned(pretend::Device(), {1000}, torch::kFloat32);
  {
    const DeviceStream::Scope on(stream);
    host.copy_(values, /*non_blocking=*/true);
  }
  DevicePoint point = stream.Here();
  EXPECT_FALSE(point.reached());
  pretend::Hold(Current(), false);
  Read(stream, values);
  EXPECT_TRUE(point.reached());
  EXPECT_TRUE(host.equal(torch::ones({1000})));
}

TEST_F(DeviceStreamTest, MayBeWaitedFor) {
  const DeviceStream stream(pretend::Device());
  const torch::Tensor values = Zeros();
  {
    const DeviceStream::Scope on(stream);
    pretend::Hold(*stream.Current(), true);
    values.add_(1);
  }
  EXPECT_TRUE(values.cpu().equal(torch::zeros({1000}))) << "the planted mistake: nobody waits";
  stream.CurrentWaits();
  const torch::Tensor later = values * 2;
  {
    const DeviceStream::Scope on(stream);
    pretend::Hold(*stream.Current(), false);
  }
  EXPECT_TRUE(later.cpu().equal(torch::full({1000}, 2.0f)));
}

TEST_F(DeviceStreamTest, KeepsMemoryThatItUses) {
  for (const bool told : {true, false}) {
    const DeviceStream stream(pretend::Device());
    torch::Tensor values = Zeros();
    if (told) stream.Uses(values);
    const torch::Tensor host = EmptyPinned(pretend::Device(), {1000}, torch::kFloat32);
    {
      const DeviceStream::Scope on(stream);
      pretend::Hold(*stream.Current(), true);
      host.copy_(values, /*non_blocking=*/true);
    }
    values = torch::Tensor();
    (void)Zeros();
    {
      const DeviceStream::Scope on(stream);
      pretend::Hold(*stream.Current(), false);
      VirtualGuardImpl(pretend::Device().type()).synchronizeStream(*stream.Current());
    }
    EXPECT_EQ(host.equal(torch::zeros({1000})), told);
  }
}

TEST_F(DeviceStreamTest, IsNothingOnTheHost) {
  const DeviceStream stream(torch::kCPU);
  EXPECT_FALSE(stream.Current());
  const DeviceStream::Scope on(stream);
  const torch::Tensor values = torch::ones({3});
  stream.Uses(values);
  stream.CurrentWaits();
  EXPECT_TRUE(stream.Here().reached());
}

}  // namespace
}  // namespace cadre::nn
