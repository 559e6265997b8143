// How much of the gathers and reductions of a fully sharded model is hidden behind its passes, and
// what the host waits for, in the pretend device's own time.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "cadre/torch/fully_sharded.h"
#include "cadre/torch/hybrid_sharding.h"
#include "gtest/gtest.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/torch/pretend_device/costs.h"
#include "worker_runtime/torch/pretend_device/pretend_communicator.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"
#include "worker_runtime/torch/ranks_for_test.h"

namespace cadre::nn {
namespace {

// In hybrid sharding, of each replica.
constexpr int kRanks = 2;
constexpr int kReplicas = 2;
constexpr int kLayers = 10;
constexpr int64_t kWidth = 256;
constexpr int64_t kBatch = 32;
constexpr double kUnitBytes = kWidth * (kWidth + 1) * 4.0;
constexpr double kUnitProducts = kBatch * kWidth * kWidth;

struct Net : torch::nn::Module {
  Net() {
    for (int i = 0; i < kLayers; ++i) {
      names.push_back("layer" + std::to_string(i));
      layers.push_back(register_module(names.back(), torch::nn::Linear(kWidth, kWidth)));
    }
  }
  torch::Tensor forward(torch::Tensor out) {
    for (torch::nn::Linear& layer : layers) out = CallUnit(layer, out).relu();
    return out;
  }
  std::vector<std::string> names;
  std::vector<torch::nn::Linear> layers;
};

// A bus whose time for one unit is `gather_seconds`, and a device whose forward pass of one takes
// `ratio` times as long.
struct Speeds {
  double gather_seconds = 5e-6;
  double ratio = 1;

  pretend::Costs costs(bool with_bus) const {
    pretend::Costs costs;
    costs.operator_seconds = 1.5e-8;
    costs.products = kUnitProducts / (ratio * gather_seconds);
    if (with_bus) costs.bus_bytes = kUnitBytes / gather_seconds;
    return costs;
  }
};

class FullyShardedHiddenTest : public ::testing::Test {
 protected:
  FullyShardedHiddenTest() { pretend::Install(kRanks * kReplicas); }
  ~FullyShardedHiddenTest() override { pretend::SetCosts(pretend::Costs()); }

  // In the device's own time.
  static double SecondsOfAStep(const pretend::Costs& costs, bool prefetches, int replicas = 1) {
    pretend::SetCosts(costs);
    double seconds = 0;
    OnEachRank(kRanks * replicas, [&](Communicator& communicator) {
      const torch::Device device = pretend::Device(communicator.rank());
      const auto net = std::make_shared<Net>();
      net->to(device);
      const torch::Tensor input = torch::ones({kBatch, kWidth}).to(device);
      FullyShardedOptions options;
      options.connect_device = pretend::ConnectPretendDevices;
      options.timeout = kLong;
      if (!prefetches) options.most_gathered_bytes = 0;
      auto groups = SplitByNode(communicator, kRanks, kLong);
      ASSERT_OK(groups);
      if (replicas > 1) options.replicas = groups->replicas.get();
      auto model = FullySharded<Net>::Create(net, net->names, *groups->shards, options);
      ASSERT_OK(model);
      torch::optim::SGD sgd((*model)->shards(), 1e-3);
      const auto now = [&] {
        return pretend::TimeAt(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
      };
      std::shared_future<double> begin, end;
      for (int step = 0; step < 4; ++step) {
        begin = now();
        const uint64_t waits = pretend::HostWaits(device);
        (*model)->forward(input).mean().backward();
        ASSERT_OK((*model)->Finish());
        ASSERT_OK((*model)->Step(sgd));
        (*model)->ZeroGrad();
        EXPECT_EQ(pretend::HostWaits(device), waits);
        end = now();
      }
      // Each waits for its own.
      const double mine = end.get() - begin.get();
      if (communicator.rank() == 0) seconds = mine;
    });
    return seconds;
  }

  static void ExpectHidden(double ratio) {
    const Speeds speeds{5e-6, ratio};
    const double alone = SecondsOfAStep(speeds.costs(false), true);
    const double ours = SecondsOfAStep(speeds.costs(true), true);
    const double one_by_one = SecondsOfAStep(speeds.costs(true), false);
    // Before the first unit nothing can be hidden, nor behind the last; and the bus is never idle
    // where it is what takes longest: every unit is gathered twice but the last, and reduced.
    const double ideal =
        std::max(alone + 2 * speeds.gather_seconds, (3 * kLayers - 1) * speeds.gather_seconds);
    std::printf("forward / bus = %.2f: %.1f us a step, ideally %.1f us: %.3f; one by one %.1f us\n",
                ratio, ours * 1e6, ideal * 1e6, ours / ideal, one_by_one * 1e6);
    EXPECT_GT(ours, 0.999 * ideal) << "nothing is faster than the ideal schedule";
    EXPECT_LE(ours, 1.15 * ideal);
    EXPECT_GT(one_by_one, 1.03 * ours);
  }

  // What goes between nodes has a bus of its own.
  static void ExpectHiddenAcross(double ratio) {
    const Speeds speeds{5e-6, ratio};
    const double sharded = SecondsOfAStep(speeds.costs(true), true);
    const double hybrid = SecondsOfAStep(speeds.costs(true), true, kReplicas);
    // Behind the last unit there is nothing to hide its parts' average, each of half a unit.
    const double ideal = sharded + 0.5 * speeds.gather_seconds;
    std::printf("forward / bus = %.2f: %.1f us a step, in hybrid sharding %.1f us: %.3f\n", ratio,
                sharded * 1e6, hybrid * 1e6, hybrid / ideal);
    EXPECT_GT(hybrid, 0.999 * ideal) << "nothing is faster than the ideal schedule";
    EXPECT_LE(hybrid, 1.02 * ideal);
  }
};

TEST_F(FullyShardedHiddenTest, BehindPassesThatAreSlowerThanTheBus) { ExpectHidden(3); }

TEST_F(FullyShardedHiddenTest, WhereTheBusIsAsFast) { ExpectHidden(1); }

TEST_F(FullyShardedHiddenTest, AsFarAsPossibleWhereTheBusIsSlower) { ExpectHidden(0.25); }

TEST_F(FullyShardedHiddenTest, BetweenReplicas) {
  for (const double ratio : {3.0, 1.0, 0.25}) ExpectHiddenAcross(ratio);
}

}  // namespace
}  // namespace cadre::nn
