// A fully sharded model ends where that of PyTorch's FSDP2 does, of the version that we are linked
// to: same model, same units, same data, fifty steps of Adam.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "base/status_matchers.h"
#include "cadre/torch/fully_sharded.h"
#include "gtest/gtest.h"
#include "third_party/torch_python.h"
#include "torch/nn/module.h"
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
constexpr char kReference[] = " tests/compatibility/fsdp_reference.py '";

struct Block : torch::nn::Module {
  Block(int from, int to) { linear = register_module("linear", torch::nn::Linear(from, to)); }
  torch::Tensor forward(torch::Tensor x) { return linear(torch::tanh(x)); }
  torch::nn::Linear linear{nullptr};
};

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(12, 24));
    inner = register_module("inner", std::make_shared<Block>(24, 16));
    outer = register_module("outer", std::make_shared<Block>(16, 16));
    last = register_module("last", torch::nn::Linear(16, 1));
  }
  torch::Tensor forward(torch::Tensor x) {
    return last(nn::CallUnit(outer, nn::CallUnit(inner, first(x))));
  }
  torch::nn::Linear first{nullptr};
  std::shared_ptr<Block> inner, outer;
  torch::nn::Linear last{nullptr};
};

void ReadInto(std::ifstream& file, const torch::Tensor& tensor) {
  file.read(static_cast<char*>(tensor.data_ptr()), tensor.nbytes());
  ASSERT_TRUE(file) << "the reference wrote too little";
}

class Fsdp : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (kTorchIsDebians) return;
    torch::set_num_threads(1);
    directory_ = ::testing::TempDir() + "/fsdp_XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    const std::string command = std::string("timeout 120 ") + kTorchPython + kReference;
    ASSERT_EQ(std::system((command + directory_ + "'").c_str()), 0)
        << "the reference needs torch in " << kTorchPython;
  }

  void SetUp() override {
    if (kTorchIsDebians) GTEST_SKIP() << "Debian's torch, 1.13, has no FSDP2";
  }

  // The largest difference of a parameter after all steps, when rank 0 starts from the reference's
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
    const auto net = std::make_shared<Net>();
    if (communicator.rank() == 0) {
      const torch::NoGradGuard no_grad;
      std::ifstream file(directory_ + "/initial", std::ios::binary);
      for (torch::Tensor& parameter : net->parameters()) {
        ReadInto(file, parameter);
        parameter.mul_(factor);
      }
    }
    auto model = nn::FullySharded<Net>::Create(net, {"inner", "outer"}, communicator);
    EXPECT_OK(model);
    if (!model.ok()) return -1;
    torch::optim::Adam adam((*model)->shards(), torch::optim::AdamOptions(0.01));
    for (int step = 0; step < kSteps; ++step) {
      const torch::Tensor inputs = torch::empty({kBatch, 12});
      std::ifstream file(directory_ + "/inputs_" + std::to_string(step) + "_" +
                             std::to_string(communicator.rank()),
                         std::ios::binary);
      ReadInto(file, inputs);
      (*model)->ZeroGrad();
      (*model)->forward(inputs).pow(2).mean().backward();
      EXPECT_OK((*model)->Finish());
      EXPECT_OK((*model)->Step(adam));
    }
    const auto full = nn::FullySharded<Net>::FullParameters::Gather(**model);
    EXPECT_OK(full);
    std::ifstream file(directory_ + "/final", std::ios::binary);
    double worst = 0;
    for (const torch::Tensor& parameter : net->parameters()) {
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

std::string Fsdp::directory_;

TEST_F(Fsdp, EndsWherePyTorchsDoes) {
  const double difference = Train(1.0f);
  std::printf("largest difference: %g\n", difference);
  EXPECT_GE(difference, 0);
  EXPECT_LE(difference, kTolerance);
}

// The comparison notices a tenth of a per cent.
TEST_F(Fsdp, EndsElsewhereFromOtherParameters) { EXPECT_GT(Train(1.001f), kTolerance); }

}  // namespace
}  // namespace cadre
