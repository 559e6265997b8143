// ShardedGradScaler's scales are those of PyTorch's GradScaler, of the version that we are linked
// to, step by step: same model, same data, fifty steps of Adam, some of which overflow.

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/sharded_data_parallel.h"
#include "cadre/torch/sharded_grad_scaler.h"
#include "gtest/gtest.h"
#include "tests/compatibility/training/reference_training.h"
#include "third_party/torch_python.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/adam.h"

namespace cadre {
namespace {

constexpr int kBatch = 8;
constexpr double kTolerance = 1e-5;
// As in grad_scaler_reference.py.
constexpr int kGrowthInterval = 4;
const std::set<std::pair<int, int>>& Overflows() {
  static const auto* const overflows = new std::set<std::pair<int, int>>{{13, 0}, {14, 1}, {21, 1}};
  return *overflows;
}

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(12, 24));
    second = register_module("second", torch::nn::Linear(24, 16));
    last = register_module("last", torch::nn::Linear(16, 1));
  }
  torch::Tensor forward(torch::Tensor x) {
    return last(torch::tanh(second(torch::tanh(first(x)))));
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, last{nullptr};
};

class GradScaler : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (kTorchIsDebians) return;
    MakeReferenceFolder(&directory_);
    RunReference("grad_scaler_reference.py", directory_);
  }

  void SetUp() override {
    if (kTorchIsDebians) GTEST_SKIP() << "torch 1.13 has no GradScaler without CUDA";
  }

  struct Outcome {
    std::vector<float> scales;
    double difference = -1;
  };

  static Outcome Train(const nn::GradScalerOptions& options) {
    Outcome outcome;
    outcome.difference = OnAllRanks([&](Communicator& communicator) {
      std::vector<float> scales;
      const double difference = TrainAsRank(communicator, options, &scales);
      if (communicator.rank() == 0) outcome.scales = scales;
      return difference;
    });
    return outcome;
  }

  static nn::GradScalerOptions Options() {
    nn::GradScalerOptions options;
    options.init_scale = std::ldexp(1.0, 127);
    options.growth_interval = kGrowthInterval;
    return options;
  }

  static std::vector<float> TheirScales() {
    const torch::Tensor scales = torch::empty({kSteps});
    std::ifstream file(directory_ + "/scales", std::ios::binary);
    ReadInto(file, scales);
    return {scales.data_ptr<float>(), scales.data_ptr<float>() + kSteps};
  }

 private:
  static double TrainAsRank(Communicator& communicator, const nn::GradScalerOptions& options,
                            std::vector<float>* scales) {
    const auto net = std::make_shared<Net>();
    if (communicator.rank() == 0) ReadInitial(directory_, net->parameters());
    torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01));
    const auto optimizer = *nn::ShardedOptimizer::Create(*net, adam, communicator);
    nn::DataParallelOptions ignore;
    ignore.reducer.non_finite = NonFinite::kIgnore;
    const auto model = *nn::ShardedDataParallel<Net>::Create(net, *optimizer, ignore);
    const auto scaler = *nn::ShardedGradScaler::Create(communicator, options);
    for (int step = 0; step < kSteps; ++step) {
      const torch::Tensor inputs =
          ReadBatch(directory_, "inputs", step, communicator.rank(), {kBatch, 12});
      torch::Tensor loss = model->forward(inputs).pow(2).mean();
      if (Overflows().count({step, communicator.rank()}) > 0) {
        loss = loss * std::numeric_limits<float>::infinity();
      }
      scaler->Scale(loss).backward();
      EXPECT_OK(model->Finish());
      EXPECT_OK(scaler->Step(*optimizer));
      EXPECT_OK(scaler->Update());
      scales->push_back(static_cast<float>(scaler->scale()));
    }
    std::ifstream file(directory_ + "/final", std::ios::binary);
    return LargestDifference(file, net->parameters(), AbsoluteDifference);
  }

  static std::string directory_;
};

std::string GradScaler::directory_;

TEST_F(GradScaler, ScalesAsPyTorchsDoes) {
  const Outcome outcome = Train(Options());
  const std::vector<float> theirs = TheirScales();
  std::printf("scales from %g to %g\n", theirs.front(), theirs.back());
  EXPECT_EQ(outcome.scales, theirs);
  ExpectAtMost(kTolerance, outcome.difference);
  // Some steps overflowed, and it grew in between.
  EXPECT_GE(std::set<float>(theirs.begin(), theirs.end()).size(), 3u);
}

// The comparison notices one update.
TEST_F(GradScaler, ScalesDifferentlyWithAnotherInterval) {
  nn::GradScalerOptions options = Options();
  options.growth_interval = kGrowthInterval + 1;
  EXPECT_NE(Train(options).scales, TheirScales());
}

}  // namespace
}  // namespace cadre
