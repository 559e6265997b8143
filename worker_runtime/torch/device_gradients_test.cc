// What DataParallel does on the host, it does on devices and with parameters of 16 bits: through
// the host's memory, and between devices that have a communicator.
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "cadre/hooks/all_reduce.h"
#include "cadre/hooks/power_sgd.h"
#include "cadre/hooks/sixteen_bit.h"
#include "cadre/hooks/sparse.h"
#include "cadre/torch/data_parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/torch/pretend_device/pretend_communicator.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"
#include "worker_runtime/torch/ranks_for_test.h"

namespace cadre::nn {
namespace {

using ::testing::HasSubstr;

struct Net : torch::nn::Module {
  explicit Net(int seed) {
    first = register_module("first", torch::nn::Linear(16, 32));
    norm = register_module("norm", torch::nn::BatchNorm1d(32));
    last = register_module("last", torch::nn::Linear(32, 1));
    extra = register_module("extra", torch::nn::Linear(1, 1));
    // The ranks are threads of one process and would draw from one generator.
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

// No two ranks have one: the ranks are threads, and would share its stream.
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

// One step of a model that is there already.
using Step = std::function<void(Communicator&, Model&, int step, torch::Device)>;

void ForwardAndBackward(Communicator& communicator, Model& model, int step, torch::Device device) {
  model.forward(Input(communicator, step, device)).pow(2).mean().backward();
  EXPECT_OK(model.Finish());
}

// What rank `rank` has after some steps.
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
  DeviceGradients() { pretend::Install(4); }

  static DataParallelOptions Options() {
    DataParallelOptions options;
    options.connect_device = GetParam();
    return options;
  }
  // A bucket for each parameter.
  static DataParallelOptions ManyBuckets() {
    DataParallelOptions options = SmallBuckets();
    options.connect_device = GetParam();
    return options;
  }

  // The same bits as on the host.
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

// What a hook would only cast and average, devices cast and average.
TEST(DeviceGradientsInSixteenBits, GiveHalfTheBytesToTheirCommunicator_AndNoneToTheHook) {
  pretend::Install(4);
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
    // That rank has no more data: nothing is looked for there.
    if (!has_bad) (*model)->forward(Input(communicator, 1, device)).mean().backward();
    report = has_bad ? (*model)->StepWithoutData() : (*model)->Finish();
    ASSERT_OK(report);
    EXPECT_FALSE(report->skipped) << report->reason;
  });
}

// Its gradients become ready in another order than most models', so that buckets are laid out anew.
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
    // As an optimizer that is not done when the next step lays the buckets out anew.
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

// Its layers are on two devices and on the host.
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
}  // namespace cadre::nn
