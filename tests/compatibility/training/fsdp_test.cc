// A fully sharded model ends where that of PyTorch's FSDP2 does, of the version that we are linked
// to: same model, same units, same data, fifty steps of Adam.

#include <fstream>
#include <memory>
#include <string>

#include "base/status_matchers.h"
#include "cadre/torch/fully_sharded.h"
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

class Fsdp : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (kTorchIsDebians) return;
    MakeReferenceFolder(&directory_);
    RunReference("fsdp_reference.py", directory_);
  }

  void SetUp() override {
    if (kTorchIsDebians) GTEST_SKIP() << "Debian's torch, 1.13, has no FSDP2";
  }

  // The largest difference of a parameter after all steps, when rank 0 starts from the reference's
  // parameters times `factor`.
  static double Train(float factor) {
    return OnAllRanks(
        [&](Communicator& communicator) { return TrainAsRank(communicator, factor); });
  }

 private:
  static double TrainAsRank(Communicator& communicator, float factor) {
    const auto net = std::make_shared<Net>();
    if (communicator.rank() == 0) ReadInitial(directory_, net->parameters(), factor);
    auto model = nn::FullySharded<Net>::Create(net, {"inner", "outer"}, communicator);
    EXPECT_OK(model);
    if (!model.ok()) return -1;
    torch::optim::Adam adam((*model)->shards(), torch::optim::AdamOptions(0.01));
    for (int step = 0; step < kSteps; ++step) {
      const torch::Tensor inputs =
          ReadBatch(directory_, "inputs", step, communicator.rank(), {kBatch, 12});
      (*model)->ZeroGrad();
      (*model)->forward(inputs).pow(2).mean().backward();
      EXPECT_OK((*model)->Finish());
      EXPECT_OK((*model)->Step(adam));
    }
    const auto full = nn::FullySharded<Net>::FullParameters::Gather(**model);
    EXPECT_OK(full);
    std::ifstream file(directory_ + "/final", std::ios::binary);
    return LargestDifference(file, net->parameters(), AbsoluteDifference);
  }

  static std::string directory_;
};

std::string Fsdp::directory_;

TEST_F(Fsdp, EndsWherePyTorchsDoes) { ExpectAtMost(kTolerance, Train(1.0f)); }

// The comparison notices a tenth of a per cent.
TEST_F(Fsdp, EndsElsewhereFromOtherParameters) { EXPECT_GT(Train(1.001f), kTolerance); }

}  // namespace
}  // namespace cadre
