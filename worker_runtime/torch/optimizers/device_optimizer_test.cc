#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/distributed_optimizer.h"
#include "gtest/gtest.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/torch/pretend_device/pretend_communicator.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"
#include "worker_runtime/torch/ranks_for_test.h"

namespace cadre::nn {
namespace {

constexpr int kRanks = 2;

// What the model is after a step of each way to synchronise.
std::vector<torch::Tensor> StepsOfEveryKind(bool on_device, const ConnectDevice& connect) {
  std::vector<torch::Tensor> values;
  OnEachRank(kRanks, [&](Communicator& communicator) {
    const torch::Device device =
        on_device ? pretend::Device(communicator.rank()) : torch::Device(torch::kCPU);
    torch::Tensor weight = torch::full({3, 4}, 1.0f + communicator.rank(), device);
    weight.set_requires_grad(true);
    torch::optim::SGD sgd(std::vector<torch::Tensor>{weight}, torch::optim::SGDOptions(0.5));
    auto optimizer = DistributedOptimizer::Create(sgd, communicator, kLong, connect);
    ASSERT_OK(optimizer);
    const auto loss = [&](float factor) {
      const torch::Tensor input = torch::arange(12, torch::kFloat32).view({3, 4}).to(device);
      return (weight * input * (factor + communicator.rank())).sum();
    };
    const auto keep = [&] {
      if (communicator.rank() == 0) values.push_back(weight.detach().cpu().clone());
    };
    ASSERT_OK((*optimizer)->BackwardAndUpdate(loss(1)));
    keep();
    ASSERT_OK((*optimizer)->BackwardAndUpdateHalf(loss(0.1f)));
    keep();
    ASSERT_OK(
        (*optimizer)->BackwardAndUpdateHalf(loss(0.1f), /*threshold=*/2, /*clipping=*/true, 0.5));
    keep();
    ASSERT_OK((*optimizer)->BackwardAndSparseUpdate(loss(3), hooks::kFusionThreshold, 0.5, true));
    keep();
    ASSERT_OK((*optimizer)->BackwardAndPartialUpdate(loss(2)));
    keep();
    ASSERT_OK((*optimizer)->AverageParameters());
    keep();
  });
  return values;
}

class DistributedOptimizerOnADevice : public ::testing::TestWithParam<ConnectDevice> {};

INSTANTIATE_TEST_SUITE_P(Through, DistributedOptimizerOnADevice,
                         ::testing::Values(ConnectDevice(),
                                           ConnectDevice(pretend::ConnectPretendDevices)),
                         [](const ::testing::TestParamInfo<ConnectDevice>& info) {
                           return info.param == nullptr ? "TheHost" : "ItsOwnCommunicator";
                         });

TEST_P(DistributedOptimizerOnADevice, DoesWhatItDoesOnTheHost) {
  pretend::Install(kRanks);
  const std::vector<torch::Tensor> host = StepsOfEveryKind(false, GetParam());
  const std::vector<torch::Tensor> device = StepsOfEveryKind(true, GetParam());
  ASSERT_EQ(host.size(), 6u);
  ASSERT_EQ(device.size(), host.size());
  for (size_t i = 0; i < host.size(); ++i) {
    EXPECT_TRUE(host[i].equal(device[i])) << host[i] << " and " << device[i];
  }
}

// A parameter that the loss does not use, and the bytes that the device gave.
TEST(DistributedOptimizerWithItsOwnCommunicator, AveragesZerosForWhatIsNotUsed) {
  pretend::Install(kRanks);
  OnEachRank(kRanks, [](Communicator& communicator) {
    const torch::Device device = pretend::Device(communicator.rank());
    torch::Tensor used = torch::ones({4}, device), unused = torch::ones({2}, device);
    used.set_requires_grad(true);
    unused.set_requires_grad(true);
    torch::optim::SGD sgd(std::vector<torch::Tensor>{used, unused}, torch::optim::SGDOptions(0.5));
    auto optimizer =
        DistributedOptimizer::Create(sgd, communicator, kLong, pretend::ConnectPretendDevices);
    ASSERT_OK(optimizer);
    for (int step = 1; step <= 3; ++step) {
      const bool both = step == 2;
      torch::Tensor loss = (used * (1.0f + communicator.rank())).sum();
      if (both && communicator.rank() == 1) loss = loss + unused.sum();
      ASSERT_OK((*optimizer)->BackwardAndUpdate(loss));
    }
    EXPECT_TRUE(used.detach().cpu().equal(torch::full({4}, 1 - 3 * 0.5f * 1.5f)));
    EXPECT_TRUE(unused.detach().cpu().equal(torch::full({2}, 0.75f)));
    EXPECT_EQ((*optimizer)->bytes_given(), 3 * 6 * sizeof(float));
  });
}

}  // namespace
}  // namespace cadre::nn
