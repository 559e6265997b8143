// DataParallel with parameters of 16 bits, through the host's memory and between devices.
#include <memory>

#include "base/status_matchers.h"
#include "cadre/torch/data_parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/module.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/torch/pretend_device/pretend_communicator.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"
#include "worker_runtime/torch/ranks_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// No two ranks have one: the ranks are threads, and would share its stream.
torch::Device DeviceOf(const Communicator& communicator) {
  return pretend::Device(communicator.rank());
}

class SixteenBitGradients : public ::testing::TestWithParam<ConnectDevice> {
 protected:
  SixteenBitGradients() { pretend::Install(4); }

  static DataParallelOptions Options() {
    DataParallelOptions options = SmallBuckets();
    options.connect_device = GetParam();
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Through, SixteenBitGradients,
                         ::testing::Values(ConnectDevice(),
                                           ConnectDevice(pretend::ConnectPretendDevices)),
                         [](const ::testing::TestParamInfo<ConnectDevice>& info) {
                           return info.param == nullptr ? "TheHost" : "TheirOwnCommunicator";
                         });

struct Scale : torch::nn::Module {
  Scale(torch::Device device, torch::ScalarType type, float value) {
    scale = register_parameter("scale", torch::full({4}, value, torch::device(device).dtype(type)));
  }
  torch::Tensor forward(float input) { return (scale * input).sum(); }
  torch::Tensor scale;
};

// In 16 bits on the host as on a device: reduced in float32, kept in their own type.
TEST_P(SixteenBitGradients, OfSixteenBitParametersTrain) {
  for (const torch::ScalarType type : {torch::kBFloat16, torch::kFloat16}) {
    for (const bool on_device : {false, true}) {
      OnEachRank(2, [&](Communicator& communicator) {
        const torch::Device device =
            on_device ? DeviceOf(communicator) : torch::Device(torch::kCPU);
        auto net = std::make_shared<Scale>(device, type, 1.0f + communicator.rank());
        auto model = DataParallel<Scale>::Create(net, communicator, Options());
        ASSERT_OK(model);
        torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.5));
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          (*model)->forward(1.0f + 2 * communicator.rank()).backward();
          ASSERT_OK((*model)->Finish());
          EXPECT_EQ(net->scale.grad().scalar_type(), type);
          EXPECT_TRUE(net->scale.grad().cpu().to(torch::kFloat32).equal(torch::full({4}, 2.0f)));
          optimizer.step();
        }
        EXPECT_TRUE(net->scale.detach().cpu().to(torch::kFloat32).equal(torch::full({4}, -2.0f)));
        EXPECT_OK((*model)->CheckParametersEqual(kLong));
      });
    }
  }
}

TEST_P(SixteenBitGradients, OfRanksThatKeepThemDifferentlyAreAnError) {
  OnEachRank(2, [](Communicator& communicator) {
    const bool first = communicator.rank() == 0;
    auto net = first ? std::make_shared<Scale>(pretend::Device(), torch::kBFloat16, 1.0f)
                     : std::make_shared<Scale>(torch::kCPU, torch::kFloat32, 1.0f);
    EXPECT_THAT(
        DataParallel<Scale>::Create(net, communicator, Options()).status().message(),
        AllOf(HasSubstr("'scale'"), HasSubstr("on rank 1 but"), HasSubstr("kept as BFloat16 on ")));
  });
}

// 200 * 512 is more than float16 has.
TEST_P(SixteenBitGradients, DoNotOverflowByTheirWeights) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<Scale>(DeviceOf(communicator), torch::kFloat16, 1.0f);
    auto model = DataParallel<Scale>::Create(net, communicator, Options());
    ASSERT_OK(model);
    for (const int samples : {512, 768, 8}) {
      (*model)->ZeroGrad();
      (*model)->set_weight(communicator.rank() == 0 ? samples : 3 * samples);
      (*model)->forward(communicator.rank() == 0 ? 40.0f : 200.0f).backward();
      ASSERT_OK((*model)->Finish());
      const torch::Tensor got = net->scale.grad().cpu().to(torch::kFloat32);
      EXPECT_TRUE(got.sub(160).abs().le(0.25).all().item<bool>()) << got;
    }
  });
}

}  // namespace
}  // namespace cadre::nn
