// Gradients are those of PyTorch's DistributedDataParallel, of the version that we are linked to:
// same model, same data, fifty steps of an optimizer.

#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/data_parallel.h"
#include "examples/mnist_cnn/net.h"
#include "gtest/gtest.h"
#include "tests/compatibility/training/reference_training.h"
#include "torch/nn/functional/loss.h"
#include "torch/optim/sgd.h"

namespace cadre {
namespace {

constexpr int kBatch = 32;
// Of a gradient or parameter, relative to the largest element of its tensor.
constexpr double kTolerance = 1e-6;

class DdpGradients : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    MakeReferenceFolder(&directory_);
    RunReference("ddp_reference.py", directory_);
  }

  // The largest difference over all steps and parameters when rank 0 starts from the reference's
  // parameters times `factor`.
  static double Train(float factor) {
    return OnAllRanks(
        [&](Communicator& communicator) { return TrainAsRank(communicator, factor); });
  }

 private:
  static double TrainAsRank(Communicator& communicator, float factor) {
    const int rank = communicator.rank();
    auto net = std::make_shared<mnist::Net>();
    if (rank == 0) ReadInitial(directory_, net->parameters(), factor);
    auto model = nn::DataParallel<mnist::Net>::Create(net, communicator);
    EXPECT_OK(model);
    if (!model.ok()) return -1;
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    double worst = 0;
    for (int step = 0; step < kSteps; ++step) {
      const auto images = ReadBatch(directory_, "images", step, rank, {kBatch, 1, 28, 28});
      const auto labels = ReadBatch(directory_, "labels", step, rank, {kBatch}, torch::kInt64);
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy((*model)->forward(images), labels).backward();
      const auto report = (*model)->Finish();
      EXPECT_OK(report);
      if (!report.ok()) return -1;
      std::vector<torch::Tensor> gradients;
      for (const torch::Tensor& parameter : net->parameters()) {
        gradients.push_back(parameter.grad());
      }
      std::ifstream file(directory_ + "/gradients_" + std::to_string(step), std::ios::binary);
      worst = Larger(worst, LargestDifference(file, gradients, RelativeDifference));
      optimizer.step();
    }
    EXPECT_OK((*model)->CheckParametersEqual(std::chrono::minutes(1)));
    std::ifstream file(directory_ + "/final", std::ios::binary);
    return Larger(worst, LargestDifference(file, net->parameters(), RelativeDifference));
  }

  static std::string directory_;
};

std::string DdpGradients::directory_;

TEST_F(DdpGradients, AreThoseOfPyTorch) { ExpectAtMost(kTolerance, Train(1.0f)); }

// The comparison notices a hundredth of a per cent.
TEST_F(DdpGradients, DifferWhenTheParametersDo) { EXPECT_GT(Train(1.0001f), kTolerance); }

}  // namespace
}  // namespace cadre
