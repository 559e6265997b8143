// Sharded training ends where that of PyTorch's ZeroRedundancyOptimizer does, of the version that
// we are linked to: same model, same data, fifty steps of Adam.

#include <chrono>
#include <fstream>
#include <memory>
#include <string>

#include "base/status_matchers.h"
#include "cadre/torch/sharded_data_parallel.h"
#include "cadre/torch/sharded_optimizer.h"
#include "gtest/gtest.h"
#include "tests/compatibility/training/reference_training.h"
#include "torch/nn/modules/activation.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/adam.h"

namespace cadre {
namespace {

constexpr int kBatch = 8;
constexpr double kTolerance = 1e-5;

using Net = torch::nn::SequentialImpl;

class ZeroOptimizer : public ::testing::TestWithParam<bool> {
 protected:
  static void SetUpTestSuite() {
    MakeReferenceFolder(&directory_);
    RunReference("zero_reference.py", directory_);
  }

  // The largest difference of a parameter after all steps, when rank 0 starts from the reference's
  // parameters times `factor`.
  static double Train(bool gradients_too, float factor) {
    return OnAllRanks([&](Communicator& communicator) {
      return TrainAsRank(communicator, gradients_too, factor);
    });
  }

 private:
  static double TrainAsRank(Communicator& communicator, bool gradients_too, float factor) {
    torch::nn::Sequential net(torch::nn::Linear(12, 24), torch::nn::Tanh(),
                              torch::nn::Linear(24, 16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 1));
    if (communicator.rank() == 0) ReadInitial(directory_, net->parameters(), factor);
    torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01));
    auto optimizer = nn::ShardedOptimizer::Create(*net, adam, communicator);
    EXPECT_OK(optimizer);
    if (!optimizer.ok()) return -1;
    std::unique_ptr<nn::DataParallel<Net>> model;
    if (gradients_too) {
      auto created = nn::ShardedDataParallel<Net>::Create(net.ptr(), **optimizer);
      EXPECT_OK(created);
      model = *std::move(created);
    } else {
      auto created = nn::DataParallel<Net>::Create(net.ptr(), communicator);
      EXPECT_OK(created);
      model = *std::move(created);
    }
    for (int step = 0; step < kSteps; ++step) {
      const torch::Tensor inputs =
          ReadBatch(directory_, "inputs", step, communicator.rank(), {kBatch, 12});
      (*optimizer)->ZeroGrad();
      model->forward(inputs).pow(2).mean().backward();
      EXPECT_OK(model->Finish());
      EXPECT_OK((*optimizer)->Step());
    }
    EXPECT_OK(model->CheckParametersEqual(std::chrono::minutes(1)));
    std::ifstream file(directory_ + "/final", std::ios::binary);
    return LargestDifference(file, net->parameters(), AbsoluteDifference);
  }

  static std::string directory_;
};

std::string ZeroOptimizer::directory_;

INSTANTIATE_TEST_SUITE_P(Shards, ZeroOptimizer, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& info) {
                           return info.param ? "GradientsToo" : "TheState";
                         });

TEST_P(ZeroOptimizer, EndsWherePyTorchsDoes) { ExpectAtMost(kTolerance, Train(GetParam(), 1.0f)); }

// The comparison notices a tenth of a per cent.
TEST_P(ZeroOptimizer, EndsElsewhereFromOtherParameters) {
  EXPECT_GT(Train(GetParam(), 1.001f), kTolerance);
}

}  // namespace
}  // namespace cadre
