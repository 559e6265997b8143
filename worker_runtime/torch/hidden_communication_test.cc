// How much of the exchange of gradients a step does not hide behind the backward pass, and what the
// host waits for, in the pretend device's own time: what comes out is the same on every machine.
//
// The device is a hundredth of a present GPU with a network card of 400 Gbit/s: times and gradients
// are divided by a hundred, speeds stay.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "cadre/torch/data_parallel.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/torch/pretend_device/costs.h"
#include "worker_runtime/torch/pretend_device/pretend_communicator.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"
#include "worker_runtime/torch/ranks_for_test.h"

namespace cadre::nn {
namespace {

constexpr int kRanks = 2;
constexpr int kLayers = 10;
constexpr int64_t kWidth = 256;
constexpr int64_t kBatch = 32;
constexpr double kParameterBytes = kLayers * kWidth * (kWidth + 1) * 4.0;
// Two products of matrices for each layer but the first, whose input needs no gradient.
constexpr double kBackwardProducts = (2 * kLayers - 1) * kBatch * kWidth * kWidth;

// Where a backward pass takes `ratio` times as long as the exchange of all gradients.
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
  HiddenCommunicationTest() { pretend::Install(kRanks); }
  ~HiddenCommunicationTest() override { pretend::SetCosts(pretend::Costs()); }
};

struct Net : torch::nn::Module {
  explicit Net(bool normalize) {
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

using Model = DataParallel<Net>;
using Time = std::shared_future<double>;

Time TimeOfCurrentStream(torch::Device device) {
  return pretend::TimeAt(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

// Notes when the gradients of one backward pass were there, each by itself: before anything of the
// runtime's. Made before the model is data-parallel.
class GradientTimes {
 public:
  explicit GradientTimes(const Net& net) : parameters_(net.parameters()) {
    times_.resize(parameters_.size());
    for (size_t i = 0; i < parameters_.size(); ++i) {
      accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameters_[i]));
      accumulators_.back()->add_post_hook(std::make_unique<Hook>(&times_[i], parameters_[i]));
    }
  }

  // When the exchange of the last bucket would be done if each had the bus to itself as soon as its
  // gradients are there and the one before it is done.
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
  // Of two layers each.
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
        net_(std::make_shared<Net>(normalize)),
        input_(torch::ones({kBatch, kWidth}).to(device_)) {
    net_->to(device_);
    times_ = std::make_unique<GradientTimes>(*net_);
    auto model = Model::Create(net_, communicator, options);
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
  // Of the last step: for how long the optimizer waited, and would have to.
  double exposed() const { return optimizer_begin_.get() - backward_end_.get(); }
  double ideally_exposed(const pretend::Costs& costs) const {
    return times_->IdealEnd(model_->reducer().buckets(), costs) - backward_end_.get();
  }
  size_t buckets() const { return model_->reducer().buckets().size(); }

  // In one step.
  uint64_t HostWaits() {
    const uint64_t before = pretend::HostWaits(device_);
    Step();
    return pretend::HostWaits(device_) - before;
  }

 private:
  const torch::Device device_;
  const std::shared_ptr<Net> net_;
  const torch::Tensor input_;
  std::unique_ptr<GradientTimes> times_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  Time backward_end_, optimizer_begin_;
};

// With a backward pass of that many times the exchange.
void ExpectHidden(double ratio) {
  const pretend::Costs costs = CostsWhere(ratio);
  pretend::SetCosts(costs);
  OnEachRank(kRanks, [&](Communicator& communicator) {
    Trainer trainer(communicator);
    // The second one lays the buckets out in the order of the first.
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

// Who decides on the host must know, and so must who copies by the host's memory.
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
