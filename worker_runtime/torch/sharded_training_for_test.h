// The network, optimizers, inputs and comparisons that the tests of sharded training share, for
// each optimizer and each kind of device.
#ifndef CADRE_WORKER_RUNTIME_TORCH_SHARDED_TRAINING_FOR_TEST_H_
#define CADRE_WORKER_RUNTIME_TORCH_SHARDED_TRAINING_FOR_TEST_H_

#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "cadre/torch/sharded_optimizer.h"
#include "gtest/gtest.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/adam.h"
#include "torch/optim/adamw.h"
#include "torch/optim/sgd.h"
#include "torch/serialize/archive.h"
#include "torch/utils.h"
#include "worker_runtime/torch/pretend_device/pretend_communicator.h"
#include "worker_runtime/torch/pretend_device/pretend_device.h"
#include "worker_runtime/torch/ranks_for_test.h"

namespace cadre::nn {

// Installs the devices before the first backward pass of the process, because autograd counts the
// devices then.
class PretendDevices : public ::testing::Environment {
  void SetUp() override { pretend::Install(4); }
};
inline ::testing::Environment* const pretend_devices =
    ::testing::AddGlobalTestEnvironment(new PretendDevices);

// The layers differ in size, so that each of four ranks owns something and the shares differ.
struct ShardedNet : torch::nn::Module {
  explicit ShardedNet(int seed = 1, const std::vector<int>& widths = {12, 24, 16, 16, 8, 1}) {
    for (size_t i = 0; i + 1 < widths.size(); ++i) {
      layers.push_back(register_module("layer" + std::to_string(i),
                                       torch::nn::Linear(widths[i], widths[i + 1])));
    }
    // The ranks are threads of one process and would otherwise share one random generator.
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : parameters()) {
      parameter.copy_(0.3 *
                      (torch::arange(parameter.numel()) * 0.7 + seed).sin().view_as(parameter));
    }
  }
  // The forward pass leaves out the last `skipped` layers (at most two).
  torch::Tensor forward(torch::Tensor x, size_t skipped = 0) {
    for (size_t i = 0; i + skipped < layers.size(); ++i) x = torch::tanh(layers[i](x));
    return x.sum(1);
  }
  std::vector<torch::nn::Linear> layers;
};

enum class Kind { kSgd, kAdam, kAdamW };

template <typename Over>
std::unique_ptr<torch::optim::Optimizer> MakeOptimizer(Kind kind, const Over& over) {
  switch (kind) {
    case Kind::kSgd:
      return std::make_unique<torch::optim::SGD>(over,
                                                 torch::optim::SGDOptions(0.05).momentum(0.9));
    case Kind::kAdam:
      return std::make_unique<torch::optim::Adam>(over,
                                                  torch::optim::AdamOptions(0.01).amsgrad(true));
    case Kind::kAdamW:
      break;
  }
  return std::make_unique<torch::optim::AdamW>(over,
                                               torch::optim::AdamWOptions(0.01).weight_decay(0.1));
}

// Where the parameters live and how gradients travel: on the host; on devices through the host's
// communicator; on devices through a communicator of their own.
enum class Where { kHost, kThroughHost, kOnDevice };

inline torch::Device DeviceFor(Where where, const Communicator& communicator) {
  // Each rank needs its own device: ranks are threads, and two on one device would share its
  // stream.
  return where == Where::kHost ? torch::Device(torch::kCPU) : pretend::Device(communicator.rank());
}

inline ConnectDevice ConnectFor(Where where) {
  return where == Where::kOnDevice ? ConnectDevice(pretend::ConnectPretendDevices)
                                   : ConnectDevice();
}

inline ShardedOptimizerOptions OptimizerOptions(Where where = Where::kHost) {
  ShardedOptimizerOptions options;
  options.timeout = kLong;
  options.connect_device = ConnectFor(where);
  return options;
}

inline torch::Tensor InputFor(int rank, int step, torch::Device device) {
  torch::Tensor input = torch::empty({6, 12});
  float* const values = input.data_ptr<float>();
  for (int i = 0; i < 6 * 12; ++i) {
    values[i] = static_cast<float>((i * 7 + step * 13 + rank * 29) % 17) / 17 - 0.5f;
  }
  return input.to(device);
}

inline std::vector<torch::Tensor> ParametersOf(const torch::nn::Module& module) {
  std::vector<torch::Tensor> values;
  for (const torch::Tensor& tensor : module.parameters()) {
    values.push_back(tensor.detach().cpu().clone());
  }
  return values;
}

inline void ExpectSame(const std::vector<torch::Tensor>& ours,
                       const std::vector<torch::Tensor>& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(ours[i].equal(theirs[i])) << "tensor " << i << ": " << ours[i] << theirs[i];
  }
}

inline void ExpectClose(const std::vector<torch::Tensor>& ours,
                        const std::vector<torch::Tensor>& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    ASSERT_EQ(ours[i].sizes(), theirs[i].sizes());
    EXPECT_LE((ours[i] - theirs[i]).abs().max().item<double>(), 1e-6) << "tensor " << i;
  }
}

// The parameters of every rank, indexed by rank.
using RanksValues = std::vector<std::vector<torch::Tensor>>;

// `same_bits` may be set for at most two ranks: a sum of two numbers is the same in any order. With
// more ranks an all-reduce and a reduce-scatter may add in different orders.
inline void ExpectClose(const RanksValues& ours, const RanksValues& theirs, bool same_bits) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t rank = 0; rank < ours.size(); ++rank) {
    SCOPED_TRACE(std::to_string(ours.size()) + " ranks, rank " + std::to_string(rank));
    ExpectClose(ours[rank], theirs[rank]);
    if (same_bits) ExpectSame(ours[rank], theirs[rank]);
  }
}

// Returns the bytes of a saved archive; ArchiveOf() makes an archive to load from such bytes.
inline std::string TextOf(torch::serialize::OutputArchive& archive) {
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}
inline torch::serialize::InputArchive ArchiveOf(const std::string& text) {
  std::istringstream stream(text);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  return archive;
}

// The base of tests that run for each Where and each optimizer.
class ShardedTraining : public ::testing::TestWithParam<std::tuple<Where, Kind>> {
 protected:
  static Where where() { return std::get<0>(GetParam()); }
  static Kind kind() { return std::get<1>(GetParam()); }

  static DataParallelOptions Options() {
    DataParallelOptions options = SmallBuckets();
    options.connect_device = ConnectFor(where());
    return options;
  }
  static std::shared_ptr<ShardedNet> MakeNet(const Communicator& communicator) {
    auto net = std::make_shared<ShardedNet>(1 + communicator.rank());
    net->to(DeviceFor(where(), communicator));
    return net;
  }
  static torch::Tensor Input(const Communicator& communicator, int step) {
    return InputFor(communicator.rank(), step, DeviceFor(where(), communicator));
  }
};

inline auto EachWay() {
  return ::testing::Values(Where::kHost, Where::kThroughHost, Where::kOnDevice);
}
inline std::string NameOfWay(Where where) {
  const char* const ways[] = {"OnTheHost", "ThroughTheHost", "BetweenDevices"};
  return ways[static_cast<int>(where)];
}

inline std::string NameOf(const ::testing::TestParamInfo<std::tuple<Where, Kind>>& info) {
  const char* const kinds[] = {"Sgd", "Adam", "AdamW"};
  return NameOfWay(std::get<0>(info.param)) + kinds[static_cast<int>(std::get<1>(info.param))];
}

// AdamW differs from Adam in what it does with a parameter, wherever that is: one way is enough.
inline auto EachWayAndKind() {
  std::vector<std::tuple<Where, Kind>> all = {{Where::kHost, Kind::kAdamW}};
  for (const Where where : {Where::kHost, Where::kThroughHost, Where::kOnDevice}) {
    all.emplace_back(where, Kind::kSgd);
    all.emplace_back(where, Kind::kAdam);
  }
  return ::testing::ValuesIn(all);
}

}  // namespace cadre::nn

#endif  // CADRE_WORKER_RUNTIME_TORCH_SHARDED_TRAINING_FOR_TEST_H_
