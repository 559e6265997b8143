// Training with a communication hook is that of PyTorch's DistributedDataParallel with its hook, or
// for ways that PyTorch does not have, that of a plain program with the formula: same model, same
// data, fifty steps, and the torch that we are linked to.

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/hooks/partial.h"
#include "cadre/hooks/power_sgd.h"
#include "cadre/hooks/sixteen_bit.h"
#include "cadre/hooks/sparse.h"
#include "cadre/torch/data_parallel.h"
#include "cadre/torch/tensors.h"
#include "gtest/gtest.h"
#include "tests/compatibility/training/reference_training.h"
#include "torch/nn/functional/loss.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/sgd.h"
#include "worker_runtime/hooks/low_rank.h"
#include "worker_runtime/shared_memory/shared_memory_communicator.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre {
namespace {

constexpr int kBatch = 16;
// Of a parameter after any step, relative to the largest element of its tensor.
constexpr double kTolerance = 1e-6;
// The factors are sums in another order, and orthonormalized; a step starts with the last one's.
constexpr double kPowerSgdTolerance = 1e-5;
// As in the reference.
constexpr double kShare = 0.05, kMagnitude = 0.01;
constexpr size_t kPartialThreshold = 100;

struct Net : torch::nn::Module {
  Net()
      : first(register_module("first", torch::nn::Linear(20, 64))),
        second(register_module("second", torch::nn::Linear(64, 5))) {}
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::relu(first(x))); }

  torch::nn::Linear first, second;
};

hooks::PowerSgdOptions PowerSgd() {
  hooks::PowerSgdOptions options;
  options.matrix_approximation_rank = 2;
  options.start_power_sgd_iter = 10;
  return options;
}

std::shared_ptr<CommunicationHook> HookFor(const std::string& way) {
  using Select = hooks::SparseOptions::Select;
  if (way == "fp16") return hooks::Fp16Hook();
  if (way == "bf16") return hooks::Bf16Hook();
  if (way == "power_sgd") return std::make_shared<hooks::PowerSgdHook>(PowerSgd());
  if (way == "top_k")
    return std::make_shared<hooks::SparseHook>(hooks::SparseOptions{Select::kTopK, kShare});
  if (way == "threshold")
    return std::make_shared<hooks::SparseHook>(
        hooks::SparseOptions{Select::kThreshold, kMagnitude});
  return nullptr;
}

// The factors that our PowerSGD begins with, for the reference to begin with them too.
void WriteFirstFactors(const std::string& directory) {
  const auto options = PowerSgd();
  size_t number = 0;
  for (const torch::Tensor& parameter : Net().parameters()) {
    if (parameter.dim() > 1) {
      std::vector<float> q(parameter.size(1) * options.matrix_approximation_rank);
      hooks::FillRandom(options.random_seed, options.start_power_sgd_iter, number, MakeSpan(q));
      std::ofstream file(directory + "/q_" + std::to_string(number), std::ios::binary);
      file.write(reinterpret_cast<const char*>(q.data()), q.size() * sizeof(float));
    }
    ++number;
  }
}

double TrainAsRank(Communicator& communicator, const std::string& directory,
                   const std::string& theirs, const std::string& ours) {
  const std::string rank = std::to_string(communicator.rank());
  auto net = std::make_shared<Net>();
  ReadInitial(directory, net->parameters());
  nn::DataParallelOptions options;
  options.reducer.hook = HookFor(ours);
  std::shared_ptr<hooks::PartialHook> partial;
  if (ours == "partial") {
    partial =
        *hooks::PartialHook::Create(nn::TrainedParameters(*net)->parameters, kPartialThreshold);
    options.reducer.hook = partial;
  }
  auto model = nn::DataParallel<Net>::Create(net, communicator, options);
  EXPECT_OK(model);
  if (!model.ok()) return HUGE_VAL;
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
    if (!report.ok()) return HUGE_VAL;
    optimizer.step();
    if (partial) {
      EXPECT_OK(partial->AverageNextGroup(communicator, std::chrono::minutes(1)));
    }
    worst = Larger(worst, LargestDifference(expected, net->parameters(), RelativeDifference));
  }
  if (!partial) {
    EXPECT_OK((*model)->CheckParametersEqual(std::chrono::minutes(1)));
  }
  return worst;
}

// The largest difference between a parameter of ours, trained `ours`' way, and the reference's,
// relative to the largest of its tensor, on any rank and after any of the steps.
double Compare(const std::string& directory, const std::string& theirs, const std::string& ours) {
  std::array<double, kWorldSize> worst;
  worst.fill(HUGE_VAL);
  testing::InProcessWorkers workers(kWorldSize);
  workers.Run([&](Worker& worker) {
    auto communicator =
        shared_memory::ConnectSharedMemory(worker, {"test", std::chrono::minutes(1)});
    ASSERT_OK(communicator);
    worst[worker.rank()] = TrainAsRank(**communicator, directory, theirs, ours);
  });
  return Larger(worst[0], worst[1]);
}

class DdpHooks : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    MakeReferenceFolder(&directory_);
    WriteFirstFactors(directory_);
    RunReference("ddp_hooks_reference.py", directory_,
                 "fp32 fp16 bf16 power_sgd top_k threshold partial", 200);
  }

  // `other` is another way of ours, which the comparison would notice.
  static void ExpectThatOfTheReference(const std::string& way, const std::string& other,
                                       double tolerance = kTolerance) {
    const double same = Compare(directory_, way, way);
    const double different = Compare(directory_, way, other);
    std::printf("largest relative difference: %g, and %g with %s\n", same, different,
                other.c_str());
    EXPECT_LE(same, tolerance);
    EXPECT_GT(different, 10 * tolerance);
  }

  static std::string directory_;
};

std::string DdpHooks::directory_;

TEST_F(DdpHooks, Fp32_FiftySteps_IsThatOfPyTorch) { ExpectThatOfTheReference("fp32", "fp16"); }

TEST_F(DdpHooks, Fp16_FiftySteps_IsThatOfPyTorch) { ExpectThatOfTheReference("fp16", "fp32"); }

TEST_F(DdpHooks, Bf16_FiftySteps_IsThatOfPyTorch) { ExpectThatOfTheReference("bf16", "fp16"); }

TEST_F(DdpHooks, PowerSgd_FiftySteps_IsThatOfPyTorch) {
  ExpectThatOfTheReference("power_sgd", "fp32", kPowerSgdTolerance);
}

TEST_F(DdpHooks, TopK_FiftySteps_IsSingasFormula) { ExpectThatOfTheReference("top_k", "fp32"); }

TEST_F(DdpHooks, Threshold_FiftySteps_IsSingasFormula) {
  ExpectThatOfTheReference("threshold", "fp32");
}

TEST_F(DdpHooks, Partial_FiftySteps_IsSingasFormula) {
  ExpectThatOfTheReference("partial", "fp32");
}

}  // namespace
}  // namespace cadre
