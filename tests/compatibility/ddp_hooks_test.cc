// Training with a 16-bit hook is that of PyTorch's DistributedDataParallel with its hook: same
// model, same data, fifty steps.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "base/status_matchers.h"
#include "cadre/hooks/sixteen_bit.h"
#include "cadre/torch/data_parallel.h"
#include "gtest/gtest.h"
#include "torch/nn/functional/loss.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre {
namespace {

constexpr int kWorldSize = 2;
constexpr int kSteps = 50;
constexpr int kBatch = 16;
constexpr double kTolerance = 1e-6;

struct Net : torch::nn::Module {
  Net()
      : first(register_module("first", torch::nn::Linear(20, 64))),
        second(register_module("second", torch::nn::Linear(64, 5))) {}
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::relu(first(x))); }

  torch::nn::Linear first, second;
};

void ReadInto(std::ifstream& file, const torch::Tensor& tensor) {
  file.read(static_cast<char*>(tensor.data_ptr()), tensor.nbytes());
  ASSERT_TRUE(file) << "the reference wrote too little";
}

std::shared_ptr<CommunicationHook> HookFor(const std::string& way) {
  if (way == "fp16") return hooks::Fp16Hook();
  if (way == "bf16") return hooks::Bf16Hook();
  return nullptr;
}

class DdpHooks : public ::testing::Test {
 protected:
  static std::string Reference(const std::string& way) {
    torch::set_num_threads(1);
    std::string directory = ::testing::TempDir() + "/hooks_XXXXXX";
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    const std::string command =
        "timeout 120 /usr/bin/python3 tests/compatibility/ddp_hooks_reference.py " + way + " '" +
        directory + "'";
    EXPECT_EQ(std::system(command.c_str()), 0)
        << "the reference needs the Debian package python3-torch";
    return directory;
  }

  // The largest difference between a parameter of ours, trained `ours`' way, and one of PyTorch's,
  // relative to the largest of its tensor, after any of the steps.
  static double Compare(const std::string& directory, const std::string& theirs,
                        const std::string& ours) {
    double worst = -1;
    testing::InProcessWorkers workers(kWorldSize);
    workers.Run([&](Worker& worker) {
      auto communicator =
          shared_memory::ConnectSharedMemory(worker, {"test", std::chrono::minutes(1)});
      ASSERT_OK(communicator);
      const double difference = TrainAsRank(**communicator, directory, theirs, ours);
      if (worker.rank() == 0) worst = difference;
    });
    return worst;
  }

 private:
  static double TrainAsRank(Communicator& communicator, const std::string& directory,
                            const std::string& theirs, const std::string& ours) {
    const std::string rank = std::to_string(communicator.rank());
    auto net = std::make_shared<Net>();
    Load(*net, directory);
    nn::DataParallelOptions options;
    options.reducer.hook = HookFor(ours);
    auto model = nn::DataParallel<Net>::Create(net, communicator, options);
    EXPECT_OK(model);
    if (!model.ok()) return -1;
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    std::ifstream batches(directory + "/batches_" + rank, std::ios::binary);
    std::ifstream expected(directory + "/parameters_" + theirs + "_" + rank, std::ios::binary);
    double worst = 0;
    for (int step = 0; step < kSteps; ++step) {
      const auto inputs = torch::empty({kBatch, 20});
      const auto labels = torch::empty({kBatch}, torch::kInt64);
      ReadInto(batches, inputs);
      ReadInto(batches, labels);
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy((*model)->forward(inputs), labels).backward();
      const auto report = (*model)->Finish();
      EXPECT_OK(report);
      if (!report.ok()) return -1;
      optimizer.step();
      worst = std::max(worst, Difference(*net, expected));
    }
    EXPECT_OK((*model)->CheckParametersEqual(std::chrono::minutes(1)));
    return worst;
  }

  static void Load(Net& net, const std::string& directory) {
    torch::NoGradGuard no_grad;
    std::ifstream file(directory + "/initial", std::ios::binary);
    for (const torch::Tensor& parameter : net.parameters()) ReadInto(file, parameter);
  }

  static double Difference(const Net& net, std::ifstream& file) {
    torch::NoGradGuard no_grad;
    double worst = 0;
    for (const torch::Tensor& parameter : net.parameters()) {
      const torch::Tensor theirs = torch::empty(parameter.sizes());
      ReadInto(file, theirs);
      worst = std::max(worst, (parameter - theirs).abs().max().item<double>() /
                                  theirs.abs().max().item<double>());
    }
    return worst;
  }
};

void ExpectThatOfPyTorch(double same, double other) {
  std::printf("largest relative difference: %g, and %g with the other hook\n", same, other);
  EXPECT_GE(same, 0);
  EXPECT_LE(same, kTolerance);
  // The comparison would notice.
  EXPECT_GT(other, kTolerance);
}

TEST_F(DdpHooks, Fp32_FiftySteps_IsThatOfPyTorch) {
  const std::string directory = Reference("fp32");
  ExpectThatOfPyTorch(Compare(directory, "fp32", "fp32"), Compare(directory, "fp32", "fp16"));
}

TEST_F(DdpHooks, Fp16_FiftySteps_IsThatOfPyTorch) {
  const std::string directory = Reference("fp16");
  ExpectThatOfPyTorch(Compare(directory, "fp16", "fp16"), Compare(directory, "fp16", "fp32"));
}

TEST_F(DdpHooks, Bf16_FiftySteps_IsThatOfPyTorch) {
  const std::string directory = Reference("bf16");
  ExpectThatOfPyTorch(Compare(directory, "bf16", "bf16"), Compare(directory, "bf16", "fp16"));
}

}  // namespace
}  // namespace cadre
