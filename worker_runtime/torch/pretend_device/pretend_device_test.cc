#include "worker_runtime/torch/pretend_device/pretend_device.h"

#include <functional>
#include <vector>

#include "c10/core/StreamGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "gtest/gtest.h"
#include "torch/nn/functional.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "torch/version.h"
#include "worker_runtime/torch/pretend_device/queue.h"

namespace cadre::pretend {
namespace {

class PretendDevice : public ::testing::Test {
 protected:
  PretendDevice() { Install(2); }

  c10::Stream Current() const { return guard().getStream(Device()); }
  c10::Stream Another() const { return guard().getStreamFromGlobalPool(Device(), false); }

 private:
  static c10::impl::VirtualGuardImpl guard() {
    return c10::impl::VirtualGuardImpl(Device().type());
  }
};

TEST_F(PretendDevice, ComputesWhatTheHostComputes) {
  const torch::Tensor a = torch::randn({3, 4}), b = torch::randn({4, 2});
  const torch::Tensor there = a.to(Device()).matmul(b.to(Device())).relu();
  EXPECT_TRUE(there.cpu().equal(a.matmul(b).relu()));
  EXPECT_EQ(torch::full({2}, 3, there.options()).sum().item<float>(), 6);
}

TEST_F(PretendDevice, TrainsAsTheHostTrains) {
  const auto train = [](torch::Device device) {
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(8, 8), torch::nn::Linear(8, 1));
    net->to(device);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      const torch::Tensor input = torch::full({4, 8}, 0.1 * step).to(device);
      torch::mse_loss(net->forward(input), torch::ones({4, 1}).to(device)).backward();
      optimizer.step();
    }
    return net->parameters().front().detach().cpu();
  };
  EXPECT_TRUE(train(Device()).equal(train(torch::kCPU)));
}

TEST_F(PretendDevice, GoesOnWhileAStreamIsHeld) {
  const torch::Tensor ones = torch::ones({4}, torch::device(Device()));
  Hold(Current(), true);
  const uint64_t before = JobsDone(Current());
  const torch::Tensor sum = ones + 1;
  EXPECT_EQ(JobsDone(Current()), before);
  Hold(Current(), false);
  EXPECT_TRUE(sum.cpu().equal(torch::full({4}, 2.0f)));
}

TEST_F(PretendDevice, WhatNobodyWaitedForIsNotThere) {
  const torch::Tensor zeros = torch::zeros({4}, torch::device(Device()));
  (void)zeros.cpu();
  Hold(Current(), true);
  const torch::Tensor made = zeros + 1;
  torch::Tensor read;
  {
    const c10::StreamGuard on(Another());
    read = made.cpu();
  }
  Hold(Current(), false);
  EXPECT_FALSE(read.equal(torch::ones({4})));
}

// Returns what a stream reads after the memory's last owner has released it.
torch::Tensor ReadLate(c10::Stream stream, c10::Stream owner, bool told) {
  const c10::impl::VirtualGuardImpl guard(Device().type());
  torch::Tensor given = torch::ones({1000}, torch::device(Device()));
  const torch::Tensor host = PinMemory(torch::zeros({1000}));
  if (told) guard.recordDataPtrOnStream(given.storage().data_ptr(), stream);
  guard.synchronizeStream(owner);
  Hold(stream, true);
  {
    const c10::StreamGuard on(stream);
    host.copy_(given, /*non_blocking=*/true);
  }
  given = torch::Tensor();
  guard.synchronizeStream(owner);
  Hold(stream, false);
  guard.synchronizeStream(stream);
  return host;
}

TEST_F(PretendDevice, FreedMemoryStaysForTheStreamsThatWereTold) {
  const size_t before = LiveBytes();
  EXPECT_TRUE(ReadLate(Another(), Current(), /*told=*/true).equal(torch::ones({1000})));
  EXPECT_TRUE(ReadLate(Another(), Current(), /*told=*/false).isnan().all().item<bool>());
  EXPECT_EQ(LiveBytes(), before);
}

TEST_F(PretendDevice, CopiesBetweenDevices) {
  const torch::Tensor here = torch::arange(5, torch::device(Device(0)));
  EXPECT_TRUE((here.to(Device(1)) * 2).cpu().equal(torch::arange(5) * 2));
}

// Sets the costs of work while the object lives.
class Costing {
 public:
  explicit Costing(const Costs& costs) { SetCosts(costs); }
  ~Costing() { SetCosts(Costs()); }
};

TEST_F(PretendDevice, HasATimeOfItsOwn) {
  Costs costs;
  costs.operator_seconds = 1;
  costs.bytes = 4000;
  costs.products = 100;
  const Costing costing(costs);
  const torch::Tensor thousand = torch::zeros({1000}, torch::device(Device()));
  const torch::Tensor wide = torch::zeros({2, 50}, torch::device(Device()));
  const auto begin = TimeAt(Current());
  const torch::Tensor half = thousand.mul(0.5);  // 1 second, 1 to read, 1 to write
  const auto multiplied = TimeAt(Current());
  const torch::Tensor view = half.view({10, 100}).t().narrow(0, 1, 2);
  const auto viewed = TimeAt(Current());
  const torch::Tensor product = wide.mm(wide.t());  // 1 second, 2
  const auto end = TimeAt(Current());
  EXPECT_DOUBLE_EQ(multiplied.get() - begin.get(), 3);
  EXPECT_DOUBLE_EQ(viewed.get() - multiplied.get(), 0);
  EXPECT_DOUBLE_EQ(end.get() - viewed.get(), 3);
}

TEST_F(PretendDevice, WhoWaitsForAnEventHasItsTimeAtLeast) {
  Costs costs;
  costs.operator_seconds = 1;
  const Costing costing(costs);
  const torch::Tensor zeros = torch::zeros({4}, torch::device(Device()));
  const c10::impl::VirtualGuardImpl guard(Device().type());
  const c10::Stream current = Current(), other = Another();
  void* event = nullptr;
  guard.record(&event, current, 0, c10::EventFlag::PYTORCH_DEFAULT);
  const auto recorded = TimeAt(current);
  guard.block(event, other);
  const auto waited = TimeAt(other);
  zeros.mul(2);
  guard.block(event, current);
  const auto end = TimeAt(current);
  EXPECT_DOUBLE_EQ(waited.get(), recorded.get());
  EXPECT_DOUBLE_EQ(end.get() - recorded.get(), 1) << "an event that is past costs nothing";
  guard.destroyEvent(event, 0);
}

TEST_F(PretendDevice, CountsWhatTheHostWaitsFor) {
  const torch::Tensor ones = torch::ones({4}, torch::device(Device()));
  const torch::Tensor pinned = PinMemory(torch::zeros({4}));
  const c10::impl::VirtualGuardImpl guard(Device().type());
  void* event = nullptr;
  const std::vector<std::function<void()>> waits = {
      [&] { guard.synchronizeStream(Current()); },
      [&] { guard.queryStream(Current()); },
      [&] { guard.queryEvent(event); },
      [&] { ones.cpu(); },
      [&] { ones.sum().item<float>(); },
      [&] { ones.nonzero(); },
  };
  const std::vector<std::function<void()>> others = {
      [&] { guard.record(&event, Current(), 0, c10::EventFlag::PYTORCH_DEFAULT); },
      [&] { guard.block(event, Current()); },
      [&] { pinned.copy_(ones, /*non_blocking=*/true); },
      [&] { torch::zeros({4}).to(Device()); },
      [&] { ones.sum(); },
  };
  for (const auto& other : others) {
    const uint64_t before = HostWaits(Device());
    other();
    EXPECT_EQ(HostWaits(Device()), before);
  }
  for (const auto& wait : waits) {
    const uint64_t before = HostWaits(Device());
    wait();
    EXPECT_GT(HostWaits(Device()), before);
  }
  guard.destroyEvent(event, 0);
}

TEST(PretendDeviceDeathTest, DiesOfATouchByTheHost) {
  Install(2);
  const torch::Tensor tensor = torch::ones({4}, torch::device(Device()));
  EXPECT_DEATH(*static_cast<volatile float*>(tensor.data_ptr()) = 1, "");
}

}  // namespace
}  // namespace cadre::pretend
