// Gradients are those of PyTorch's DistributedDataParallel, of the version that we are linked to:
// same model, same data, fifty steps of an optimizer.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/torch/data_parallel.h"
#include "examples/mnist_cnn/net.h"
#include "gtest/gtest.h"
#include "third_party/torch_python.h"
#include "torch/nn/functional/loss.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre {
namespace {

constexpr int kWorldSize = 2;
constexpr int kSteps = 50;
constexpr int kBatch = 32;
// Of a gradient or parameter, relative to the largest element of its tensor.
constexpr double kTolerance = 1e-6;
constexpr char kReference[] = " tests/compatibility/ddp_reference.py '";

// Fills `tensor` with the next bytes of the file.
void ReadInto(std::ifstream& file, const torch::Tensor& tensor) {
  file.read(static_cast<char*>(tensor.data_ptr()), tensor.nbytes());
  ASSERT_TRUE(file) << "the reference wrote too little";
}

torch::Tensor ReadTensor(const std::string& path, torch::IntArrayRef shape,
                         torch::ScalarType type) {
  torch::Tensor tensor = torch::empty(shape, type);
  std::ifstream file(path, std::ios::binary);
  ReadInto(file, tensor);
  return tensor;
}

// NaN, which compares with nothing, is more than everything.
double Larger(double a, double b) { return b <= a ? a : b; }

double RelativeDifference(const torch::Tensor& ours, const torch::Tensor& theirs) {
  return (ours - theirs).abs().max().item<double>() / theirs.abs().max().item<double>();
}

class DdpGradients : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    torch::set_num_threads(1);
    directory_ = ::testing::TempDir() + "/ddp_XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    const std::string command = std::string("timeout 120 ") + kTorchPython + kReference;
    ASSERT_EQ(std::system((command + directory_ + "'").c_str()), 0)
        << "the reference needs torch in " << kTorchPython;
  }

  // The largest difference over all steps and parameters when rank 0 starts from the reference's
  // parameters times `factor`.
  static double Train(float factor) {
    double worst = -1;
    testing::InProcessWorkers workers(kWorldSize);
    workers.Run([&](Worker& worker) {
      auto communicator = sockets::ConnectSockets(worker, CommunicatorOptions());
      ASSERT_OK(communicator);
      const double difference = TrainAsRank(**communicator, factor);
      if (worker.rank() == 0) worst = difference;
    });
    return worst;
  }

 private:
  static double TrainAsRank(Communicator& communicator, float factor) {
    const std::string rank = std::to_string(communicator.rank());
    auto net = std::make_shared<mnist::Net>();
    if (communicator.rank() == 0) LoadInitial(*net, factor);
    auto model = nn::DataParallel<mnist::Net>::Create(net, communicator);
    EXPECT_OK(model);
    if (!model.ok()) return -1;
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    double worst = 0;
    for (int step = 0; step < kSteps; ++step) {
      const std::string suffix = "_" + std::to_string(step) + "_" + rank;
      const auto images =
          ReadTensor(directory_ + "/images" + suffix, {kBatch, 1, 28, 28}, torch::kFloat32);
      const auto labels = ReadTensor(directory_ + "/labels" + suffix, {kBatch}, torch::kInt64);
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy((*model)->forward(images), labels).backward();
      const auto report = (*model)->Finish();
      EXPECT_OK(report);
      if (!report.ok()) return -1;
      worst = Larger(worst, CompareGradients(*net, step));
      optimizer.step();
    }
    EXPECT_OK((*model)->CheckParametersEqual(std::chrono::minutes(1)));
    return Larger(worst, CompareParameters(*net));
  }

  static void LoadInitial(mnist::Net& net, float factor) {
    torch::NoGradGuard no_grad;
    std::ifstream file(directory_ + "/initial", std::ios::binary);
    for (torch::Tensor parameter : net.parameters()) {
      ReadInto(file, parameter);
      parameter.mul_(factor);
    }
  }

  static double CompareGradients(const mnist::Net& net, int step) {
    std::ifstream file(directory_ + "/gradients_" + std::to_string(step), std::ios::binary);
    double worst = 0;
    for (const torch::Tensor& parameter : net.parameters()) {
      const torch::Tensor theirs = torch::empty(parameter.sizes());
      ReadInto(file, theirs);
      worst = Larger(worst, RelativeDifference(parameter.grad(), theirs));
    }
    return worst;
  }

  static double CompareParameters(const mnist::Net& net) {
    std::ifstream file(directory_ + "/final", std::ios::binary);
    double worst = 0;
    for (const torch::Tensor& parameter : net.parameters()) {
      const torch::Tensor theirs = torch::empty(parameter.sizes());
      ReadInto(file, theirs);
      worst = Larger(worst, RelativeDifference(parameter.detach(), theirs));
    }
    return worst;
  }

  static std::string directory_;
};

std::string DdpGradients::directory_;

TEST_F(DdpGradients, AreThoseOfPyTorch) {
  const double difference = Train(1.0f);
  std::printf("largest relative difference: %g\n", difference);
  EXPECT_GE(difference, 0);
  EXPECT_LE(difference, kTolerance);
}

// The comparison notices a hundredth of a per cent.
TEST_F(DdpGradients, DifferWhenTheParametersDo) { EXPECT_GT(Train(1.0001f), kTolerance); }

}  // namespace
}  // namespace cadre
