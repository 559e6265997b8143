#include "cadre/torch/device_links.h"

#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "base/status_matchers.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "cadre/hooks/sixteen_bit.h"
#include "cadre/torch/data_parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/module.h"
#include "torch/utils.h"
#include "worker_runtime/torch/pretend_device/pretend_communicator.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"
#include "worker_runtime/torch/ranks_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::HasSubstr;

// Its gradient is what it is called with.
struct Scale : torch::nn::Module {
  explicit Scale(torch::Device device) {
    scale = register_parameter("scale", torch::ones({4}, torch::device(device)));
  }
  torch::Tensor forward(float input) { return (scale * input).sum(); }
  torch::Tensor scale;
};

using Model = DataParallel<Scale>;

class DeviceLinksTest : public ::testing::Test {
 protected:
  DeviceLinksTest() { pretend::Install(3); }

  static torch::Device DeviceOf(const Communicator& communicator) {
    return pretend::Device(communicator.rank() % 2);
  }
  static DataParallelOptions Linked() {
    DataParallelOptions options = SmallBuckets();
    options.connect_device = pretend::ConnectPretendDevices;
    return options;
  }
  static DataParallelOptions Refused(const Status& status) {
    DataParallelOptions options = SmallBuckets();
    options.connect_device = [status](Communicator&, DeviceStream&) { return status; };
    return options;
  }
  static float Gradient(const Scale& net) { return net.scale.grad().cpu()[0].item<float>(); }
};

// The communicator's stream is held: whoever waited for the device would wait for ever.
TEST_F(DeviceLinksTest, NothingInAStepWaitsForTheDevice) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<Scale>(DeviceOf(communicator));
    std::optional<c10::Stream> used;
    DataParallelOptions options = Linked();
    options.connect_device = [&](Communicator& host, DeviceStream& stream) {
      const DeviceStream::Scope on(stream);
      used = stream.Current();
      return pretend::ConnectPretendDevices(host, stream);
    };
    auto model = Model::Create(net, communicator, options);
    ASSERT_OK(model);
    // The second step asks all ranks for the order of their gradients.
    for (int step = 0; step < 2; ++step) {
      (*model)->ZeroGrad();
      (*model)->forward(1.0f).backward();
      ASSERT_OK((*model)->Finish());
    }
    (*model)->ZeroGrad();
    pretend::Hold(*used, true);
    (*model)->forward(1.0f + 2 * communicator.rank()).backward();
    const auto report = (*model)->Finish();
    pretend::Hold(*used, false);
    ASSERT_OK(report);
    EXPECT_EQ(report->weight, 2);
    EXPECT_FLOAT_EQ(Gradient(*net), 2);
  });
}

TEST_F(DeviceLinksTest, ReportsTheBytesThatDevicesGive) {
  OnEachRank(2, [](Communicator& communicator) {
    size_t bytes[2] = {};
    for (const bool linked : {false, true}) {
      const auto net = std::make_shared<Scale>(DeviceOf(communicator));
      DataParallelOptions options = linked ? Linked() : SmallBuckets();
      auto model = Model::Create(net, communicator, options);
      ASSERT_OK(model);
      (*model)->forward(1).backward();
      const auto report = (*model)->Finish();
      ASSERT_OK(report);
      bytes[linked ? 1 : 0] = report->bytes;
    }
    EXPECT_EQ(bytes[0], bytes[1]);
  });
}

// It is found on the device, and told when the host comes to know of it.
TEST_F(DeviceLinksTest, WhatIsNotFiniteIsAnErrorOfTheNextStepAtTheLatest) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    OnEachRank(2, [bad](Communicator& communicator) {
      const auto net = std::make_shared<Scale>(DeviceOf(communicator));
      auto model = Model::Create(net, communicator, Linked());
      ASSERT_OK(model);
      (*model)->forward(communicator.rank() == 1 ? bad : 1.0f).backward();
      Status status = (*model)->Finish().status();
      if (status.ok()) {
        // The device has come that far.
        net->scale.grad().cpu();
        (*model)->ZeroGrad();
        (*model)->forward(1).backward();
        status = (*model)->Finish().status();
      }
      EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
      EXPECT_THAT(status.message(), HasSubstr("or the one before it: on rank 1 of 'scale'"));
    });
  }
}

TEST_F(DeviceLinksTest, ARankThatIsAloneSendsNothing) {
  OnEachRank(1, [](Communicator& communicator) {
    const auto net = std::make_shared<Scale>(pretend::Device());
    auto model = Model::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    (*model)->forward(3).backward();
    const auto report = (*model)->Finish();
    ASSERT_OK(report);
    EXPECT_EQ(report->bytes, 0u);
    EXPECT_FLOAT_EQ(Gradient(*net), 3);
  });
}

TEST_F(DeviceLinksTest, DevicesThatCannotBeConnectedGoThroughTheHost) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<Scale>(DeviceOf(communicator));
    auto model = Model::Create(net, communicator,
                               Refused(FailedPreconditionError("two ranks have the same GPU")));
    ASSERT_OK(model);
    (*model)->forward(1.0f + 2 * communicator.rank()).backward();
    ASSERT_OK((*model)->Finish());
    EXPECT_FLOAT_EQ(Gradient(*net), 2);
  });
}

TEST_F(DeviceLinksTest, AnotherErrorOfConnectingIsOneOfTheModel) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<Scale>(DeviceOf(communicator));
    const auto model =
        Model::Create(net, communicator, Refused(UnavailableError("the network failed")));
    EXPECT_EQ(model.status().code(), StatusCode::kUnavailable);
  });
}

struct ScaleAndNothing : Scale {
  explicit ScaleAndNothing(torch::Device device) : Scale(device) {
    nothing = register_parameter("nothing", torch::ones({0}, torch::device(device)));
  }
  torch::Tensor forward(float input) { return Scale::forward(input) + nothing.sum(); }
  torch::Tensor nothing;
};

TEST_F(DeviceLinksTest, AParameterMayBeEmpty) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<ScaleAndNothing>(DeviceOf(communicator));
    auto model = DataParallel<ScaleAndNothing>::Create(net, communicator, Linked());
    ASSERT_OK(model);
    (*model)->forward(1.0f + 2 * communicator.rank()).backward();
    ASSERT_OK((*model)->Finish());
    EXPECT_FLOAT_EQ(Gradient(*net), 2);
  });
}

TEST_F(DeviceLinksTest, RanksThatEncryptConnectNoDevicesOfSeveralMachines) {
  OnEachRank(2, [](Communicator& communicator) {
    EXPECT_OK(CheckDevicesMayLeave(communicator, communicator.rank() == 0 ? "a" : "b"));
  });
  setenv("CADRE_ENCRYPT", "1", 1);
  OnEachRank(2, [](Communicator& communicator) {
    EXPECT_OK(CheckDevicesMayLeave(communicator, "a"));
    EXPECT_THAT(CheckDevicesMayLeave(communicator, communicator.rank() == 0 ? "a" : "b"),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("CADRE_DEVICE_BACKEND=nccl")));
  });
  unsetenv("CADRE_ENCRYPT");
}

// NCCL is for devices of CUDA's.
TEST_F(DeviceLinksTest, NcclConnectsNoOtherDevice) {
  OnEachRank(2, [](Communicator& communicator) {
    DeviceStream stream(pretend::Device());
    EXPECT_EQ(ConnectByNccl(communicator, stream).status().code(), StatusCode::kUnimplemented);
  });
}

// A rank gives up between its gradients and its peers' ends of the step.
TEST_F(DeviceLinksTest, ARankThatGivesUpLeavesNobodyWaiting) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<Scale>(DeviceOf(communicator));
    auto model = Model::Create(net, communicator, Linked());
    ASSERT_OK(model);
    if (communicator.rank() == 1) return communicator.Abort();
    (*model)->forward(1).backward();
    EXPECT_FALSE((*model)->Finish().ok());
    // The device is free again.
    net->scale.detach().cpu();
  });
}

// Connected devices whose communicator and stream a test holds.
struct HeldLink {
  Communicator* communicator = nullptr;
  std::optional<c10::Stream> stream;

  ConnectDevice Connect() {
    return [this](Communicator& host, DeviceStream& of) {
      const DeviceStream::Scope on(of);
      stream = of.Current();
      auto connected = pretend::ConnectPretendDevices(host, of);
      if (connected.ok()) communicator = connected->get();
      return connected;
    };
  }
  // What it was given has failed, and whoever asks knows.
  void Break() const {
    communicator->Abort();
    c10::impl::VirtualGuardImpl(stream->device_type()).synchronizeStream(*stream);
  }
};

// Of three ranks, each on a device of its own, where the devices of ranks 0 and 1 fail in a step.
void OnBrokenDevices(const std::function<void(Communicator&, Model&)>& expect, bool one_gives_up) {
  // Rank 2 has its gradients after that: the devices of the others are not done with the step yet.
  absl::BlockingCounter broken(2);
  OnEachRank(3, [&](Communicator& communicator) {
    HeldLink link;
    const auto net = std::make_shared<Scale>(pretend::Device(communicator.rank()));
    DataParallelOptions options = SmallBuckets();
    options.connect_device = link.Connect();
    auto model = Model::Create(net, communicator, options);
    ASSERT_OK(model);
    if (one_gives_up && communicator.rank() == 2) return communicator.Abort();
    if (communicator.rank() == 2) broken.Wait();
    (*model)->forward(1).backward();
    if (communicator.rank() < 2) {
      link.Break();
      broken.DecrementCount();
    }
    expect(communicator, **model);
  });
}

// The devices know that something failed; the hosts know who it was.
TEST_F(DeviceLinksTest, WhereDevicesFailTheHostIsAskedForTheCause) {
  OnBrokenDevices(
      [](Communicator&, Model& model) {
        EXPECT_THAT(model.Finish().status().message(), HasSubstr("rank 2 has left"));
      },
      /*one_gives_up=*/true);
}

TEST_F(DeviceLinksTest, WhereDevicesFailAloneTheirErrorIsTheCause) {
  OnBrokenDevices(
      [](Communicator& communicator, Model& model) {
        Status status = model.Finish().status();
        if (communicator.rank() < 2) {
          EXPECT_THAT(status.message(), HasSubstr("abort"));
          return;
        }
        // A rank that did not know yet hears it in the next step.
        if (status.ok()) {
          model.forward(1).backward();
          status = model.Finish().status();
        }
        EXPECT_EQ(status.code(), StatusCode::kAborted);
      },
      /*one_gives_up=*/false);
}

}  // namespace
}  // namespace cadre::nn
