// DataParallel does on devices and with 16-bit parameters what it does on the host: through the
// host's memory, and between devices that have a communicator. Also tested are how devices get one,
// their streams, and how much of the exchange is hidden behind the backward pass.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "base/status_matchers.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "cadre/hooks/all_reduce.h"
#include "cadre/hooks/power_sgd.h"
#include "cadre/hooks/sixteen_bit.h"
#include "cadre/hooks/sparse.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/torch/device_stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/torch/device_links.h"
#include "worker_runtime/torch/pretend_device/pretend_communicator.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"
#include "worker_runtime/torch/pretend_device/queue.h"
#include "worker_runtime/torch/ranks_for_test.h"

namespace cadre::nn {
namespace {

const ::testing::Environment* const kDevices = pretend::InstallBeforeTests(4);

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Net : torch::nn::Module {
  explicit Net(int seed) {
    first = register_module("first", torch::nn::Linear(16, 32));
    norm = register_module("norm", torch::nn::BatchNorm1d(32));
    last = register_module("last", torch::nn::Linear(32, 1));
    extra = register_module("extra", torch::nn::Linear(1, 1));
    // The ranks are threads of one process and would otherwise share one random generator.
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : parameters()) {
      parameter.copy_(0.2 *
                      (torch::arange(parameter.numel()) * 0.7 + seed).sin().view_as(parameter));
    }
  }
  torch::Tensor forward(const torch::Tensor& input, bool use_extra = true) {
    const torch::Tensor out = last(norm(first(input)).relu());
    return use_extra ? extra(out) : out;
  }
  torch::nn::Linear first{nullptr}, last{nullptr}, extra{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

using Model = DataParallel<Net>;

// Each rank needs its own device: ranks are threads, and two on one device would share its stream.
torch::Device DeviceOf(const Communicator& communicator) {
  return pretend::Device(communicator.rank());
}

std::shared_ptr<Net> NetOn(torch::Device device, int seed = 1) {
  auto net = std::make_shared<Net>(seed);
  net->to(device);
  return net;
}

torch::Tensor Input(const Communicator& communicator, int step, torch::Device device) {
  torch::Tensor input = torch::empty({8, 16});
  float* const values = input.data_ptr<float>();
  for (int i = 0; i < 8 * 16; ++i) {
    values[i] = static_cast<float>((i * 7 + step * 13 + communicator.rank() * 29) % 17) / 17 - 0.5f;
  }
  return input.to(device);
}

std::vector<torch::Tensor> StateOf(const Net& net) {
  std::vector<torch::Tensor> state;
  for (const auto& list : {net.parameters(), net.buffers()}) {
    for (const torch::Tensor& tensor : list) state.push_back(tensor.detach().cpu().clone());
  }
  return state;
}

// Runs one step of an existing model.
using Step = std::function<void(Communicator&, Model&, int step, torch::Device)>;

void ForwardAndBackward(Communicator& communicator, Model& model, int step, torch::Device device) {
  model.forward(Input(communicator, step, device)).pow(2).mean().backward();
  EXPECT_OK(model.Finish());
}

// Returns the state of rank `rank` after some steps.
std::vector<torch::Tensor> Train(int ranks, bool on_device, const DataParallelOptions& options,
                                 const Step& step, int rank) {
  std::vector<torch::Tensor> state;
  OnEachRank(ranks, [&](Communicator& communicator) {
    const torch::Device device = on_device ? DeviceOf(communicator) : torch::Device(torch::kCPU);
    const auto net = NetOn(device, 1 + communicator.rank());
    auto model = Model::Create(net, communicator, options);
    ASSERT_OK(model);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int i = 0; i < 6; ++i) {
      optimizer.zero_grad();
      step(communicator, **model, i, device);
      optimizer.step();
    }
    if (communicator.rank() == rank) state = StateOf(*net);
  });
  return state;
}

class DeviceGradients : public ::testing::TestWithParam<ConnectDevice> {
 protected:
  static DataParallelOptions Options() {
    DataParallelOptions options;
    options.connect_device = GetParam();
    return options;
  }
  // SmallBuckets() gives each parameter its own bucket.
  static DataParallelOptions ManyBuckets() {
    DataParallelOptions options = SmallBuckets();
    options.connect_device = GetParam();
    return options;
  }

  // Expects the same bits as on the host.
  static void ExpectAsOnHost(int ranks, const DataParallelOptions& options,
                             const Step& step = ForwardAndBackward) {
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<torch::Tensor> host = Train(ranks, false, options, step, rank);
      const std::vector<torch::Tensor> device = Train(ranks, true, options, step, rank);
      ASSERT_EQ(host.size(), device.size());
      for (size_t i = 0; i < host.size(); ++i) {
        EXPECT_TRUE(host[i].equal(device[i]))
            << "tensor " << i << " of rank " << rank << ": " << host[i] << " and " << device[i];
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Through, DeviceGradients,
                         ::testing::Values(ConnectDevice(),
                                           ConnectDevice(pretend::ConnectPretendDevices)),
                         [](const ::testing::TestParamInfo<ConnectDevice>& info) {
                           return info.param == nullptr ? "TheHost" : "TheirOwnCommunicator";
                         });

TEST_P(DeviceGradients, AreAveragedAsOnTheHost) {
  for (const int ranks : {1, 2, 3}) ExpectAsOnHost(ranks, Options());
}

TEST_P(DeviceGradients, TravelInManyBuckets) { ExpectAsOnHost(2, ManyBuckets()); }

TEST_P(DeviceGradients, OfParametersThatNotAllRanksUse) {
  ExpectAsOnHost(
      2, ManyBuckets(),
      [](Communicator& communicator, Model& model, int step, torch::Device device) {
        const bool use_extra = step % 3 == communicator.rank();
        model.forward(Input(communicator, step, device), use_extra).pow(2).mean().backward();
        ASSERT_OK(model.Finish());
      });
}

TEST_P(DeviceGradients, AddUpInsideNoSync) {
  ExpectAsOnHost(2, ManyBuckets(),
                 [](Communicator& communicator, Model& model, int step, torch::Device device) {
                   {
                     const Model::NoSync no_sync(model);
                     ForwardAndBackward(communicator, model, step + 100, device);
                   }
                   if (step % 2 == 1 && communicator.rank() == 1) {
                     ASSERT_OK(model.StepWithoutData());
                     return;
                   }
                   ForwardAndBackward(communicator, model, step, device);
                 });
}

TEST_P(DeviceGradients, CountByWeight) {
  ExpectAsOnHost(2, ManyBuckets(),
                 [](Communicator& communicator, Model& model, int step, torch::Device device) {
                   if (step % 2 == 1 && communicator.rank() == 1) {
                     ASSERT_OK(model.StepWithoutData());
                     return;
                   }
                   model.set_weight(1 + 2 * communicator.rank());
                   ForwardAndBackward(communicator, model, step, device);
                 });
}

TEST_P(DeviceGradients, BecomeReadySeveralTimesInAStaticGraph) {
  DataParallelOptions options = ManyBuckets();
  options.reducer.static_graph = true;
  ExpectAsOnHost(2, options,
                 [](Communicator& communicator, Model& model, int step, torch::Device device) {
                   const torch::Tensor out = model.forward(Input(communicator, step, device));
                   (out.pow(2).mean() + model.module().extra(out).mean()).backward();
                   ASSERT_OK(model.Finish());
                 });
}

TEST_P(DeviceGradients, GoThroughEveryHook) {
  const std::vector<std::function<std::shared_ptr<CommunicationHook>()>> hooks = {
      [] { return std::make_shared<hooks::AllReduceHook>(); },
      [] { return hooks::Fp16Hook(); },
      [] { return std::make_shared<hooks::ClippingHook>(0.01, hooks::Bf16Hook()); },
      [] {
        return hooks::Fp16Hook(std::make_shared<hooks::PowerSgdHook>(hooks::PowerSgdOptions()));
      },
      [] { return std::make_shared<hooks::PowerSgdHook>(hooks::PowerSgdOptions()); },
      [] { return std::make_shared<hooks::SparseHook>(hooks::SparseOptions()); },
  };
  for (const auto& make : hooks) {
    const Step train = ForwardAndBackward;
    std::vector<std::vector<torch::Tensor>> states;
    for (const bool on_device : {false, true}) {
      std::vector<torch::Tensor> state;
      OnEachRank(2, [&](Communicator& communicator) {
        const torch::Device device =
            on_device ? DeviceOf(communicator) : torch::Device(torch::kCPU);
        const auto net = NetOn(device);
        DataParallelOptions options = ManyBuckets();
        options.reducer.hook = make();
        auto model = Model::Create(net, communicator, options);
        ASSERT_OK(model);
        torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
        for (int step = 0; step < 5; ++step) {
          optimizer.zero_grad();
          train(communicator, **model, step, device);
          optimizer.step();
        }
        if (communicator.rank() == 0) state = StateOf(*net);
      });
      states.push_back(state);
    }
    for (size_t i = 0; i < states[0].size(); ++i) EXPECT_TRUE(states[0][i].equal(states[1][i]));
  }
}

TEST_P(DeviceGradients, ThatOverflowInSixteenBitsSkipTheStep) {
  OnEachRank(2, [](Communicator& communicator) {
    const torch::Device device = DeviceOf(communicator);
    const auto net = NetOn(device);
    DataParallelOptions options = ManyBuckets();
    options.reducer.non_finite = NonFinite::kSkip;
    options.reducer.hook = hooks::Fp16Hook();
    auto model = Model::Create(net, communicator, options);
    ASSERT_OK(model);
    const float scale = communicator.rank() == 1 ? 1e9f : 1.0f;
    ((*model)->forward(Input(communicator, 0, device)) * scale).sum().backward();
    auto report = (*model)->Finish();
    ASSERT_OK(report);
    EXPECT_TRUE(report->skipped);
    net->zero_grad();
    (*model)->forward(Input(communicator, 1, device)).mean().backward();
    report = (*model)->Finish();
    ASSERT_OK(report);
    EXPECT_FALSE(report->skipped) << report->reason;
  });
}

// If a hook would only cast and average, the devices do both themselves.
TEST(DeviceGradientsInSixteenBits, GiveHalfTheBytesToTheirCommunicator_AndNoneToTheHook) {
  OnEachRank(2, [](Communicator& communicator) {
    const torch::Device device = DeviceOf(communicator);
    uint64_t bytes[2];
    for (const bool narrow : {false, true}) {
      const auto net = NetOn(device);
      DataParallelOptions options;
      options.connect_device = pretend::ConnectPretendDevices;
      if (narrow) options.reducer.hook = hooks::Fp16Hook();
      auto model = Model::Create(net, communicator, options);
      ASSERT_OK(model);
      (*model)->forward(Input(communicator, 0, device)).mean().backward();
      const auto report = (*model)->Finish();
      ASSERT_OK(report);
      bytes[narrow] = report->bytes;
      if (narrow) {
        EXPECT_EQ(options.reducer.hook->bytes_given(), 0u);
      }
    }
    EXPECT_LT(bytes[1], 0.7 * bytes[0]);
  });
}

TEST_P(DeviceGradients, ThatAreNotFiniteSkipTheStep_AndNoneAfterIt) {
  OnEachRank(2, [](Communicator& communicator) {
    const torch::Device device = DeviceOf(communicator);
    const auto net = NetOn(device);
    DataParallelOptions options = ManyBuckets();
    options.reducer.non_finite = NonFinite::kSkip;
    auto model = Model::Create(net, communicator, options);
    ASSERT_OK(model);
    const bool has_bad = communicator.rank() == 1;
    const float bad = has_bad ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
    ((*model)->forward(Input(communicator, 0, device)) * bad).mean().backward();
    auto report = (*model)->Finish();
    ASSERT_OK(report);
    EXPECT_TRUE(report->skipped);
    EXPECT_THAT(report->reason, HasSubstr("rank 1"));
    net->zero_grad();
    // That rank has no more data, and nothing is checked there.
    if (!has_bad) (*model)->forward(Input(communicator, 1, device)).mean().backward();
    report = has_bad ? (*model)->StepWithoutData() : (*model)->Finish();
    ASSERT_OK(report);
    EXPECT_FALSE(report->skipped) << report->reason;
  });
}

// Gradients become ready in another order than in most models, so that buckets are laid out again.
struct Backwards : torch::nn::Module {
  Backwards() {
    last = register_module("last", torch::nn::Linear(8, 1));
    first = register_module("first", torch::nn::Linear(16, 8));
  }
  torch::Tensor forward(const torch::Tensor& input) { return last(first(input)); }
  torch::nn::Linear first{nullptr}, last{nullptr};
};

TEST_P(DeviceGradients, AreReadToTheEndBeforeTheirMemoryGoes) {
  OnEachRank(2, [](Communicator& communicator) {
    const torch::Device device = DeviceOf(communicator);
    const auto net = std::make_shared<Backwards>();
    net->to(device);
    auto model = DataParallel<Backwards>::Create(net, communicator, ManyBuckets());
    ASSERT_OK(model);
    (*model)->forward(Input(communicator, 0, device)).mean().backward();
    ASSERT_OK((*model)->Finish());
    const torch::Tensor first = net->first->weight.grad().cpu();
    const torch::Tensor input = Input(communicator, 1, device);
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    // Stands for an optimizer that has not finished when the next step lays the buckets out again.
    pretend::Hold(stream, true);
    const torch::Tensor read = net->first->weight.grad().clone();
    const uint64_t waits = pretend::HostWaits(device);
    std::atomic<bool> laid_out{false};
    std::thread device_goes_on([&] {
      while (!laid_out && pretend::HostWaits(device) == waits) std::this_thread::yield();
      pretend::Hold(stream, false);
    });
    const torch::Tensor out = (*model)->forward(input);
    laid_out = true;
    device_goes_on.join();
    const std::vector<size_t>& sent_first = (*model)->reducer().buckets()[0];
    EXPECT_THAT((*model)->reducer().parameters()[sent_first[0]].name, HasSubstr("last"));
    EXPECT_TRUE(read.cpu().equal(first));
    out.mean().backward();
    ASSERT_OK((*model)->Finish());
  });
}

TEST_P(DeviceGradients, OfReplicasThatPartedAreAnError) {
  OnEachRank(2, [](Communicator& communicator) {
    const torch::Device device = DeviceOf(communicator);
    const auto net = NetOn(device);
    DataParallelOptions options = ManyBuckets();
    options.reducer.fingerprint_every = 2;
    auto model = Model::Create(net, communicator, options);
    ASSERT_OK(model);
    ForwardAndBackward(communicator, **model, 0, device);
    {
      const torch::NoGradGuard no_grad;
      if (communicator.rank() == 1) net->last->weight.add_(1);
    }
    (*model)->forward(Input(communicator, 1, device)).mean().backward();
    const auto report = (*model)->Finish();
    EXPECT_EQ(report.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(report.status().message(), HasSubstr("last.weight"));
  });
}

TEST_P(DeviceGradients, OfASecondBackwardPassAreAnError) {
  OnEachRank(2, [](Communicator& communicator) {
    const torch::Device device = DeviceOf(communicator);
    const auto net = NetOn(device);
    auto model = Model::Create(net, communicator, Options());
    ASSERT_OK(model);
    const torch::Tensor loss = (*model)->forward(Input(communicator, 0, device)).mean();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    EXPECT_THAT((*model)->Finish().status().message(), HasSubstr("became ready twice in step 1"));
  });
}

// The layers are on two devices and on the host.
struct SplitNet : Net {
  SplitNet(torch::Device one, torch::Device other) : Net(1), one(one), other(other) {
    first->to(one);
    norm->to(other);
  }
  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor middle = norm(first(input.to(one)).to(other)).relu();
    return extra(last(middle.cpu()));
  }
  const torch::Device one, other;
};

TEST_P(DeviceGradients, OfOneModelOnTwoDevicesAndTheHost) {
  std::vector<torch::Tensor> states[2];
  for (const bool spread : {false, true}) {
    OnEachRank(2, [&](Communicator& communicator) {
      const torch::Device host(torch::kCPU);
      const int one = 2 * communicator.rank();
      auto net = spread ? std::make_shared<SplitNet>(pretend::Device(one), pretend::Device(one + 1))
                        : std::make_shared<SplitNet>(host, host);
      auto model = DataParallel<SplitNet>::Create(net, communicator, Options());
      ASSERT_OK(model);
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        (*model)->forward(Input(communicator, step, host)).pow(2).mean().backward();
        ASSERT_OK((*model)->Finish());
        optimizer.step();
      }
      if (communicator.rank() == 0) states[spread ? 1 : 0] = StateOf(*net);
    });
  }
  ASSERT_EQ(states[0].size(), states[1].size());
  for (size_t i = 0; i < states[0].size(); ++i) EXPECT_TRUE(states[0][i].equal(states[1][i]));
}

}  // namespace

// Tests of DataParallel with 16-bit parameters, through the host's memory and between devices.

namespace {

class SixteenBitGradients : public ::testing::TestWithParam<ConnectDevice> {
 protected:
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

struct TypedScale : torch::nn::Module {
  TypedScale(torch::Device device, torch::ScalarType type, float value) {
    scale = register_parameter("scale", torch::full({4}, value, torch::device(device).dtype(type)));
  }
  torch::Tensor forward(float input) { return (scale * input).sum(); }
  torch::Tensor scale;
};

// 16-bit parameters behave on the host as on a device: they are reduced in float32 and keep their
// type.
TEST_P(SixteenBitGradients, OfSixteenBitParametersTrain) {
  for (const torch::ScalarType type : {torch::kBFloat16, torch::kFloat16}) {
    for (const bool on_device : {false, true}) {
      OnEachRank(2, [&](Communicator& communicator) {
        const torch::Device device =
            on_device ? DeviceOf(communicator) : torch::Device(torch::kCPU);
        auto net = std::make_shared<TypedScale>(device, type, 1.0f + communicator.rank());
        auto model = DataParallel<TypedScale>::Create(net, communicator, Options());
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
    auto net = first ? std::make_shared<TypedScale>(pretend::Device(), torch::kBFloat16, 1.0f)
                     : std::make_shared<TypedScale>(torch::kCPU, torch::kFloat32, 1.0f);
    EXPECT_THAT(
        DataParallel<TypedScale>::Create(net, communicator, Options()).status().message(),
        AllOf(HasSubstr("'scale'"), HasSubstr("on rank 1 but"), HasSubstr("kept as BFloat16 on ")));
  });
}

// 200 * 512 is more than float16 can represent.
TEST_P(SixteenBitGradients, DoNotOverflowByTheirWeights) {
  OnEachRank(2, [](Communicator& communicator) {
    auto net = std::make_shared<TypedScale>(DeviceOf(communicator), torch::kFloat16, 1.0f);
    auto model = DataParallel<TypedScale>::Create(net, communicator, Options());
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

// The parameter's gradient is the argument of forward().
struct Scale : torch::nn::Module {
  explicit Scale(torch::Device device) {
    scale = register_parameter("scale", torch::ones({4}, torch::device(device)));
  }
  torch::Tensor forward(float input) { return (scale * input).sum(); }
  torch::Tensor scale;
};

using ScaleModel = DataParallel<Scale>;

class DeviceLinksTest : public ::testing::Test {
 protected:
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

// The communicator's stream is held, so a wait for the device would never end.
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
    auto model = ScaleModel::Create(net, communicator, options);
    ASSERT_OK(model);
    // In the second step the ranks agree on the order of their gradients.
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
      auto model = ScaleModel::Create(net, communicator, options);
      ASSERT_OK(model);
      (*model)->forward(1).backward();
      const auto report = (*model)->Finish();
      ASSERT_OK(report);
      bytes[linked ? 1 : 0] = report->bytes;
    }
    EXPECT_EQ(bytes[0], bytes[1]);
  });
}

// The value is found on the device, and reported when the host learns of it.
//
// Fault (collective): A gradient on a device is not finite -> The device finds it, and an error of
// that step or the next one names rank and parameter
TEST_F(DeviceLinksTest, WhatIsNotFiniteIsAnErrorOfTheNextStepAtTheLatest) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    OnEachRank(2, [bad](Communicator& communicator) {
      const auto net = std::make_shared<Scale>(DeviceOf(communicator));
      auto model = ScaleModel::Create(net, communicator, Linked());
      ASSERT_OK(model);
      (*model)->forward(communicator.rank() == 1 ? bad : 1.0f).backward();
      Status status = (*model)->Finish().status();
      if (status.ok()) {
        // The copy waits until the device has got there.
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
    auto model = ScaleModel::Create(net, communicator, SmallBuckets());
    ASSERT_OK(model);
    (*model)->forward(3).backward();
    const auto report = (*model)->Finish();
    ASSERT_OK(report);
    EXPECT_EQ(report->bytes, 0u);
    EXPECT_FLOAT_EQ(Gradient(*net), 3);
  });
}

// Fault (collective): A rank has no GPU, or NCCL is missing -> Gradients go through host memory;
// with `CADRE_DEVICE_BACKEND=nccl` it is an error instead
TEST_F(DeviceLinksTest, DevicesThatCannotBeConnectedGoThroughTheHost) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<Scale>(DeviceOf(communicator));
    auto model = ScaleModel::Create(
        net, communicator, Refused(FailedPreconditionError("two ranks have the same GPU")));
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
        ScaleModel::Create(net, communicator, Refused(UnavailableError("the network failed")));
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

// Fault (collective): With `--encrypt`, GPUs of several machines should be connected by NCCL ->
// They are not connected, the reason names `CADRE_DEVICE_BACKEND=nccl`, and gradients go through
// host memory
TEST_F(DeviceLinksTest, RanksThatEncryptConnectNoDevicesOfSeveralMachines) {
  OnEachRank(2, [](Communicator& communicator) {
    EXPECT_OK(CheckDevicesMayCrossMachines(communicator, communicator.rank() == 0 ? "a" : "b"));
  });
  setenv("CADRE_ENCRYPT", "1", 1);
  OnEachRank(2, [](Communicator& communicator) {
    EXPECT_OK(CheckDevicesMayCrossMachines(communicator, "a"));
    EXPECT_THAT(CheckDevicesMayCrossMachines(communicator, communicator.rank() == 0 ? "a" : "b"),
                StatusIs(StatusCode::kFailedPrecondition, HasSubstr("CADRE_DEVICE_BACKEND=nccl")));
  });
  unsetenv("CADRE_ENCRYPT");
}

// NCCL connects CUDA devices only.
TEST_F(DeviceLinksTest, NcclConnectsNoOtherDevice) {
  OnEachRank(2, [](Communicator& communicator) {
    DeviceStream stream(pretend::Device());
    EXPECT_EQ(ConnectByNccl(communicator, stream).status().code(), StatusCode::kUnimplemented);
  });
}

// A rank aborts between its own gradients and its peers' ends of the step.
//
// Fault (collective): A rank gives up while the ranks' devices reduce -> The other ranks get an
// error, and their devices are free
TEST_F(DeviceLinksTest, ARankThatGivesUpLeavesNobodyWaiting) {
  OnEachRank(2, [](Communicator& communicator) {
    const auto net = std::make_shared<Scale>(DeviceOf(communicator));
    auto model = ScaleModel::Create(net, communicator, Linked());
    ASSERT_OK(model);
    if (communicator.rank() == 1) return communicator.Abort();
    (*model)->forward(1).backward();
    EXPECT_FALSE((*model)->Finish().ok());
    // The copy shows that the device is free again.
    net->scale.detach().cpu();
  });
}

// Connected devices whose communicator and stream a test can control.
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
  // After this returns the queued work has failed, and queries report that.
  void Break() const {
    communicator->Abort();
    c10::impl::VirtualGuardImpl(stream->device_type()).synchronizeStream(*stream);
  }
};

// Runs three ranks, each on its own device; the devices of ranks 0 and 1 fail in a step.
void OnBrokenDevices(const std::function<void(Communicator&, ScaleModel&)>& expect,
                     bool one_gives_up) {
  // Rank 2 gets its gradients after that, so the other devices have not finished the step yet.
  absl::BlockingCounter broken(2);
  OnEachRank(3, [&](Communicator& communicator) {
    HeldLink link;
    const auto net = std::make_shared<Scale>(pretend::Device(communicator.rank()));
    DataParallelOptions options = SmallBuckets();
    options.connect_device = link.Connect();
    auto model = ScaleModel::Create(net, communicator, options);
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

// The devices know that something failed; the hosts know which rank it was.
//
// Fault (collective): Devices fail because a rank is lost -> The host's communicator says which
// rank; if it has no failure the error is that of the devices
TEST_F(DeviceLinksTest, WhereDevicesFailTheHostIsAskedForTheCause) {
  OnBrokenDevices(
      [](Communicator&, ScaleModel& model) {
        EXPECT_THAT(model.Finish().status().message(), HasSubstr("rank 2 has left"));
      },
      /*one_gives_up=*/true);
}

TEST_F(DeviceLinksTest, WhereDevicesFailAloneTheirErrorIsTheCause) {
  OnBrokenDevices(
      [](Communicator& communicator, ScaleModel& model) {
        Status status = model.Finish().status();
        if (communicator.rank() < 2) {
          EXPECT_THAT(status.message(), HasSubstr("abort"));
          return;
        }
        // A rank that did not learn of it yet does so in the next step.
        if (status.ok()) {
          model.forward(1).backward();
          status = model.Finish().status();
        }
        EXPECT_EQ(status.code(), StatusCode::kAborted);
      },
      /*one_gives_up=*/false);
}

using c10::impl::VirtualGuardImpl;

class DeviceStreamTest : public ::testing::Test {
 protected:
  static c10::Stream Current() {
    return VirtualGuardImpl(pretend::Device().type()).getStream(pretend::Device());
  }
  static torch::Tensor Zeros() {
    torch::Tensor zeros = torch::zeros({1000}, torch::device(pretend::Device()));
    VirtualGuardImpl(pretend::Device().type()).synchronizeStream(Current());
    return zeros;
  }
  // Returns the tensor on the host, in the order of `stream`.
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
  // The deliberate mistake: the stream does not wait.
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

// How much of the exchange of gradients a step fails to hide behind the backward pass, and how
// often the host waits. Times are the pretend device's simulated ones, the same on every machine.
//
// The device is a hundredth of a present GPU with a network card of 400 Gbit/s: times and gradients
// are divided by a hundred, speeds stay.

namespace {

constexpr int kRanks = 2;
constexpr int kLayers = 10;
constexpr int64_t kWidth = 256;
constexpr int64_t kBatch = 32;
constexpr double kParameterBytes = kLayers * kWidth * (kWidth + 1) * 4.0;
// Each layer has two matrix products, except the first, whose input needs no gradient.
constexpr double kBackwardProducts = (2 * kLayers - 1) * kBatch * kWidth * kWidth;

// Returns costs with which a backward pass takes `ratio` times as long as the exchange of all
// gradients.
pretend::Costs CostsWhere(double ratio) {
  pretend::Costs costs;
  costs.operator_seconds = 1.5e-8;
  costs.bytes = 2.4e12;
  costs.bus_seconds = 2e-7;
  costs.bus_bytes = 50e9;
  costs.products = kBackwardProducts / (ratio * kParameterBytes / costs.bus_bytes);
  return costs;
}

class HiddenCommunicationTest : public ::testing::Test {
 protected:
  ~HiddenCommunicationTest() override { pretend::SetCosts(pretend::Costs()); }
};

struct LayeredNet : torch::nn::Module {
  explicit LayeredNet(bool normalize) {
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    }
    if (normalize) norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
  }
  torch::Tensor forward(torch::Tensor out) {
    for (torch::nn::Linear& layer : layers) out = layer(out).relu();
    return norm.is_empty() ? out : norm(out);
  }
  std::vector<torch::nn::Linear> layers;
  torch::nn::BatchNorm1d norm{nullptr};
};

using LayeredModel = DataParallel<LayeredNet>;
using Time = std::shared_future<double>;

Time TimeOfCurrentStream(torch::Device device) {
  return pretend::TimeAt(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

// Records when each gradient of one backward pass was complete, before any work of the runtime. It
// must be made before the model becomes data-parallel.
class GradientTimes {
 public:
  explicit GradientTimes(const LayeredNet& net) : parameters_(net.parameters()) {
    times_.resize(parameters_.size());
    for (size_t i = 0; i < parameters_.size(); ++i) {
      accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameters_[i]));
      accumulators_.back()->add_post_hook(std::make_unique<Hook>(&times_[i], parameters_[i]));
    }
  }

  // Returns when the exchange of the last bucket would end if each bucket had the bus to itself as
  // soon as its gradients are complete and the bucket before it is done.
  double IdealEnd(const std::vector<std::vector<size_t>>& buckets,
                  const pretend::Costs& costs) const {
    double end = 0;
    for (const std::vector<size_t>& bucket : buckets) {
      size_t bytes = 0;
      for (const size_t i : bucket) {
        bytes += static_cast<size_t>(parameters_[i].numel()) * parameters_[i].element_size();
        end = std::max(end, times_[i].get());
      }
      end += costs.OfCollective(bytes);
    }
    return end;
  }

 private:
  class Hook : public torch::autograd::FunctionPostHook {
   public:
    Hook(Time* time, const torch::Tensor& parameter) : time_(time), device_(parameter.device()) {}
    torch::autograd::variable_list operator()(
        const torch::autograd::variable_list& outputs,
        const torch::autograd::variable_list& /*inputs*/) override {
      *time_ = TimeOfCurrentStream(device_);
      return outputs;
    }

   private:
    Time* const time_;
    const torch::Device device_;
  };

  const std::vector<torch::Tensor> parameters_;
  std::vector<decltype(torch::autograd::impl::grad_accumulator(torch::Tensor()))> accumulators_;
  std::vector<Time> times_;
};

DataParallelOptions Linked() {
  DataParallelOptions options;
  options.connect_device = pretend::ConnectPretendDevices;
  // A bucket holds two layers.
  options.reducer.bucket_bytes = 2 * kWidth * kWidth * sizeof(float);
  options.reducer.first_bucket_bytes = 1000;
  options.reducer.timeout = options.timeout = kLong;
  return options;
}

// One rank with its model, on its own device.
class Trainer {
 public:
  explicit Trainer(Communicator& communicator, const DataParallelOptions& options = Linked(),
                   bool normalize = false)
      : device_(pretend::Device(communicator.rank())),
        net_(std::make_shared<LayeredNet>(normalize)),
        input_(torch::ones({kBatch, kWidth}).to(device_)) {
    net_->to(device_);
    times_ = std::make_unique<GradientTimes>(*net_);
    auto model = LayeredModel::Create(net_, communicator, options);
    EXPECT_OK(model);
    model_ = *std::move(model);
    optimizer_ = std::make_unique<torch::optim::SGD>(net_->parameters(), 1e-3);
  }

  void Step() {
    optimizer_->zero_grad();
    model_->forward(input_).mean().backward();
    backward_end_ = TimeOfCurrentStream(device_);
    EXPECT_OK(model_->Finish());
    optimizer_begin_ = TimeOfCurrentStream(device_);
    optimizer_->step();
  }
  // How long the optimizer waited in the last step; ideally_exposed() is how long it had to.
  double exposed() const { return optimizer_begin_.get() - backward_end_.get(); }
  double ideally_exposed(const pretend::Costs& costs) const {
    return times_->IdealEnd(model_->reducer().buckets(), costs) - backward_end_.get();
  }
  size_t buckets() const { return model_->reducer().buckets().size(); }

  // Returns how often the host waits in one step.
  uint64_t HostWaits() {
    const uint64_t before = pretend::HostWaits(device_);
    Step();
    return pretend::HostWaits(device_) - before;
  }

 private:
  const torch::Device device_;
  const std::shared_ptr<LayeredNet> net_;
  const torch::Tensor input_;
  std::unique_ptr<GradientTimes> times_;
  std::unique_ptr<LayeredModel> model_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  Time backward_end_, optimizer_begin_;
};

// The backward pass takes `ratio` times as long as the exchange.
void ExpectHidden(double ratio) {
  const pretend::Costs costs = CostsWhere(ratio);
  pretend::SetCosts(costs);
  OnEachRank(kRanks, [&](Communicator& communicator) {
    Trainer trainer(communicator);
    // The second step lays the buckets out in the order of the first.
    for (int step = 0; step < 4; ++step) trainer.Step();
    ASSERT_GE(trainer.buckets(), 5u);
    const double exposed = trainer.exposed();
    const double ideal = trainer.ideally_exposed(costs);
    ASSERT_GT(ideal, 0);
    EXPECT_GT(exposed, 0.999 * ideal) << "nothing is faster than the ideal schedule";
    EXPECT_LE(exposed, 1.1 * ideal) << exposed << " s of the device's time, and not " << ideal;
    if (communicator.rank() == 0) {
      std::printf("backward / bus = %.2f: exposed %.2f us, ideally %.2f us: %.3f\n", ratio,
                  exposed * 1e6, ideal * 1e6, exposed / ideal);
    }
  });
}

TEST_F(HiddenCommunicationTest, BehindABackwardPassThatIsSlowerThanTheBus) { ExpectHidden(4); }

TEST_F(HiddenCommunicationTest, AsFarAsPossibleWhereTheBusIsSlower) { ExpectHidden(0.33); }

TEST_F(HiddenCommunicationTest, WhereTheBusIsAsFastAsTheBackwardPass) { ExpectHidden(1); }

TEST_F(HiddenCommunicationTest, AStepWaitsForNoDevice) {
  for (const bool normalize : {false, true}) {
    OnEachRank(kRanks, [&](Communicator& communicator) {
      Trainer trainer(communicator, Linked(), normalize);
      for (int step = 0; step < 2; ++step) trainer.Step();
      for (int step = 0; step < 3; ++step) {
        EXPECT_EQ(trainer.HostWaits(), 0u)
            << (normalize ? "with buffers" : "without buffers") << ", step " << step;
      }
    });
  }
}

// The host has to wait where it decides on the step, and where gradients are copied through its
// memory.
TEST_F(HiddenCommunicationTest, AStepWaitsWhereTheHostMustKnow) {
  DataParallelOptions skips = Linked();
  skips.reducer.non_finite = NonFinite::kSkip;
  DataParallelOptions compares = Linked();
  compares.reducer.fingerprint_every = 1;
  DataParallelOptions by_the_host = Linked();
  by_the_host.connect_device = nullptr;
  for (const DataParallelOptions& options : {skips, compares, by_the_host}) {
    OnEachRank(kRanks, [&](Communicator& communicator) {
      Trainer trainer(communicator, options);
      for (int step = 0; step < 2; ++step) trainer.Step();
      EXPECT_GT(trainer.HostWaits(), 0u);
    });
  }
}

}  // namespace

}  // namespace cadre::nn
