// Training beside a program of this folder that does the same with PyTorch (NAME_reference.py), of
// the version that we are linked to.
#ifndef CADRE_TESTS_COMPATIBILITY_TRAINING_REFERENCE_TRAINING_H_
#define CADRE_TESTS_COMPATIBILITY_TRAINING_REFERENCE_TRAINING_H_

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cadre/communicator.h"
#include "gtest/gtest.h"
#include "third_party/torch_python.h"
#include "torch/types.h"
#include "torch/utils.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/testing/ranks.h"

namespace cadre {

// As in reference.py.
inline constexpr int kWorldSize = 2;
inline constexpr int kSteps = 50;

// Makes the folder, in which the program is to write.
inline void MakeReferenceFolder(std::string* directory) {
  *directory = ::testing::TempDir() + "/reference_XXXXXX";
  ASSERT_NE(mkdtemp(directory->data()), nullptr);
}

inline void RunReference(const std::string& program, const std::string& directory,
                         const std::string& more = "", int seconds = 120) {
  torch::set_num_threads(1);
  const std::string command = "timeout " + std::to_string(seconds) + " " + kTorchPython +
                              " tests/compatibility/training/" + program + " '" + directory + "' " +
                              more;
  ASSERT_EQ(std::system(command.c_str()), 0) << "the reference needs torch in " << kTorchPython;
}

// Fills `tensor` with the next bytes of the file.
inline void ReadInto(std::ifstream& file, const torch::Tensor& tensor) {
  file.read(static_cast<char*>(tensor.data_ptr()), tensor.nbytes());
  ASSERT_TRUE(file) << "the reference wrote too little";
}

// What a rank's step begins with.
inline torch::Tensor ReadBatch(const std::string& directory, const std::string& name, int step,
                               int rank, torch::IntArrayRef shape,
                               torch::ScalarType type = torch::kFloat32) {
  torch::Tensor batch = torch::empty(shape, type);
  std::ifstream file(
      directory + "/" + name + "_" + std::to_string(step) + "_" + std::to_string(rank),
      std::ios::binary);
  ReadInto(file, batch);
  return batch;
}

// The parameters that the reference began with, times `factor`.
inline void ReadInitial(const std::string& directory, const std::vector<torch::Tensor>& parameters,
                        float factor = 1) {
  const torch::NoGradGuard no_grad;
  std::ifstream file(directory + "/initial", std::ios::binary);
  for (const torch::Tensor& parameter : parameters) {
    ReadInto(file, parameter);
    torch::Tensor(parameter).mul_(factor);
  }
}

// NaN, which compares with nothing, is more than everything.
inline double Larger(double a, double b) { return b <= a ? a : b; }

inline double AbsoluteDifference(const torch::Tensor& ours, const torch::Tensor& theirs) {
  return (ours - theirs).abs().max().item<double>();
}
// To the largest element.
inline double RelativeDifference(const torch::Tensor& ours, const torch::Tensor& theirs) {
  return AbsoluteDifference(ours, theirs) / theirs.abs().max().item<double>();
}

// Of tensors that come next in the file.
inline double LargestDifference(
    std::ifstream& file, const std::vector<torch::Tensor>& ours,
    const std::function<double(const torch::Tensor&, const torch::Tensor&)>& difference) {
  double worst = 0;
  for (const torch::Tensor& one : ours) {
    const torch::Tensor theirs = torch::empty(one.sizes());
    ReadInto(file, theirs);
    worst = Larger(worst, difference(one.detach(), theirs));
  }
  return worst;
}

// That a difference was found (it is not negative), and is no more than that.
inline void ExpectAtMost(double tolerance, double difference) {
  std::printf("largest difference: %g\n", difference);
  EXPECT_GE(difference, 0);
  EXPECT_LE(difference, tolerance);
}

// Rank 0's result of `train`, which all ranks run.
inline double OnAllRanks(const std::function<double(Communicator&)>& train) {
  double result = -1;
  testing::OnEachRank(
      sockets::ConnectSockets, kWorldSize,
      [&](Communicator& communicator) {
        const double own = train(communicator);
        if (communicator.rank() == 0) result = own;
      },
      std::chrono::minutes(1));
  return result;
}

}  // namespace cadre

#endif  // CADRE_TESTS_COMPATIBILITY_TRAINING_REFERENCE_TRAINING_H_
