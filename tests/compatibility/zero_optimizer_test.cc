// Sharded training ends where that of PyTorch's ZeroRedundancyOptimizer does, of the version that
// we are linked to: same model, same data, fifty steps of Adam.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "base/status_matchers.h"
#include "cadre/torch/sharded_data_parallel.h"
#include "cadre/torch/sharded_optimizer.h"
#include "gtest/gtest.h"
#include "third_party/torch_python.h"
#include "torch/nn/modules/activation.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/adam.h"
#include "torch/utils.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre {
namespace {

constexpr int kWorldSize = 2;
constexpr int kSteps = 50;
constexpr int kBatch = 8;
constexpr double kTolerance = 1e-5;
constexpr char kReference[] = " tests/compatibility/zero_reference.py '";

using Net = torch::nn::SequentialImpl;

void ReadInto(std::ifstream& file, const torch::Tensor& tensor) {
  file.read(static_cast<char*>(tensor.data_ptr()), tensor.nbytes());
  ASSERT_TRUE(file) << "the reference wrote too little";
}

class ZeroOptimizer : public ::testing::TestWithParam<bool> {
 protected:
  static void SetUpTestSuite() {
    torch::set_num_threads(1);
    directory_ = ::testing::TempDir() + "/zero_XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    const std::string command = std::string("timeout 120 ") + kTorchPython + kReference;
    ASSERT_EQ(std::system((command + directory_ + "'").c_str()), 0)
        << "the reference needs torch in " << kTorchPython;
  }

  // The largest difference of a parameter after all steps, when rank 0 starts from the reference's
  // parameters times `factor`.
  static double Train(bool gradients_too, float factor) {
    double worst = -1;
    testing::InProcessWorkers workers(kWorldSize);
    workers.Run([&](Worker& worker) {
      auto communicator = sockets::ConnectSockets(worker, CommunicatorOptions());
      ASSERT_OK(communicator);
      const double difference = TrainAsRank(**communicator, gradients_too, factor);
      if (worker.rank() == 0) worst = difference;
    });
    return worst;
  }

 private:
  static double TrainAsRank(Communicator& communicator, bool gradients_too, float factor) {
    torch::nn::Sequential net(torch::nn::Linear(12, 24), torch::nn::Tanh(),
                              torch::nn::Linear(24, 16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 1));
    if (communicator.rank() == 0) LoadInitial(*net, factor);
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
      const torch::Tensor inputs = torch::empty({kBatch, 12});
      std::ifstream file(directory_ + "/inputs_" + std::to_string(step) + "_" +
                             std::to_string(communicator.rank()),
                         std::ios::binary);
      ReadInto(file, inputs);
      (*optimizer)->ZeroGrad();
      model->forward(inputs).pow(2).mean().backward();
      EXPECT_OK(model->Finish());
      EXPECT_OK((*optimizer)->Step());
    }
    EXPECT_OK(model->CheckParametersEqual(std::chrono::minutes(1)));
    return CompareFinal(*net);
  }

  static void LoadInitial(Net& net, float factor) {
    torch::NoGradGuard no_grad;
    std::ifstream file(directory_ + "/initial", std::ios::binary);
    for (torch::Tensor parameter : net.parameters()) {
      ReadInto(file, parameter);
      parameter.mul_(factor);
    }
  }

  static double CompareFinal(const Net& net) {
    std::ifstream file(directory_ + "/final", std::ios::binary);
    double worst = 0;
    for (const torch::Tensor& parameter : net.parameters()) {
      const torch::Tensor theirs = torch::empty(parameter.sizes());
      ReadInto(file, theirs);
      const double difference = (parameter.detach() - theirs).abs().max().item<double>();
      // NaN, which compares with nothing, is more than everything.
      worst = difference <= worst ? worst : difference;
    }
    return worst;
  }

  static std::string directory_;
};

std::string ZeroOptimizer::directory_;

INSTANTIATE_TEST_SUITE_P(Shards, ZeroOptimizer, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& info) {
                           return info.param ? "GradientsToo" : "TheState";
                         });

TEST_P(ZeroOptimizer, EndsWherePyTorchsDoes) {
  const double difference = Train(GetParam(), 1.0f);
  std::printf("largest difference: %g\n", difference);
  EXPECT_GE(difference, 0);
  EXPECT_LE(difference, kTolerance);
}

// The comparison notices a tenth of a per cent.
TEST_P(ZeroOptimizer, EndsElsewhereFromOtherParameters) {
  EXPECT_GT(Train(GetParam(), 1.001f), kTolerance);
}

}  // namespace
}  // namespace cadre
