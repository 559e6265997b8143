#include "train.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "digits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "idx.h"
#include "net.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"
#include "worker_runtime/sockets/socket_communicator.h"
#include "worker_runtime/testing/in_process_workers.h"
#include "worker_runtime/testing/ranks.h"
#include "worker_runtime/testing/rejoining_worker.h"
#include "wrapped_optimizer.h"

namespace cadre::mnist {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// The values of the flags --sync and --dist_option.
struct Way {
  std::string sync = "fp32";
  std::string dist_option;
};
Way Sync(const std::string& way) { return {way, ""}; }
Way DistOption(const std::string& option) { return {"fp32", option}; }

class TrainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/train_XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    ASSERT_OK(WriteImageSet(DrawDigits(650, 1), directory_, "train"));
    ASSERT_OK(WriteImageSet(DrawDigits(101, 2), directory_, "t10k"));
  }

  // Returns the output of two ranks.
  std::string Run(int epochs, const std::string& checkpoint_dir, const Way& way = {}) const {
    TrainOptions options;
    options.device = "cpu";
    options.sync = way.sync;
    options.dist_option = way.dist_option;
    options.data_dir = directory_;
    options.checkpoint_dir = checkpoint_dir;
    options.epochs = epochs;
    options.batch_size = 16;
    ::testing::internal::CaptureStdout();
    testing::InProcessWorkers workers(2);
    workers.Run([&](Worker& worker) { EXPECT_OK(Train(worker, options)); });
    return ::testing::internal::GetCapturedStdout();
  }

  void ExpectResumingChangesNothing(const Way& way) const;

  std::string directory_;
};

// Returns "0123456789abcdef" of "parameters equal on 2 ranks: 0123456789abcdef".
std::string HashIn(const std::string& output) {
  const std::string before = "parameters equal on 2 ranks: ";
  const size_t at = output.find(before);
  EXPECT_NE(at, std::string::npos) << output;
  return at == std::string::npos ? "" : output.substr(at + before.size(), 16);
}

void TrainTest::ExpectResumingChangesNothing(const Way& way) const {
  const std::string interrupted = directory_ + "/interrupted";
  const std::string whole = directory_ + "/whole";
  const std::string first = Run(1, interrupted, way);
  EXPECT_THAT(first, Not(HasSubstr("resumed")));
  // The ranks of this test share libtorch's random numbers, so both runs below start from one
  // checkpoint.
  std::filesystem::copy(interrupted, whole, std::filesystem::copy_options::recursive);
  EXPECT_THAT(Run(2, interrupted, way), HasSubstr("resumed from epoch 1\n"));
  const std::string resumed_twice = Run(3, interrupted, way);
  EXPECT_THAT(resumed_twice, HasSubstr("resumed from epoch 2\n"));
  EXPECT_THAT(resumed_twice, Not(HasSubstr("epoch 2/3")));
  const std::string resumed_once = Run(3, whole, way);
  EXPECT_THAT(resumed_once, HasSubstr("epoch 2/3"));
  EXPECT_EQ(HashIn(resumed_twice), HashIn(resumed_once));
  EXPECT_NE(HashIn(first), HashIn(resumed_once));
}

TEST_F(TrainTest, AResumedTrainingEndsWithTheSameParameters) {
  ExpectResumingChangesNothing(Sync("fp32"));
}

// The residual of every rank is part of the checkpoint.
TEST_F(TrainTest, AResumedSparseTrainingEndsWithTheSameParameters) {
  ExpectResumingChangesNothing(Sync("threshold"));
}

TEST_F(TrainTest, AResumedSparseTrainingWithAWrappedOptimizerToo) {
  ExpectResumingChangesNothing(DistOption("sparseThreshold"));
}

// The images do not fill the last step, so one rank has none.
TEST_F(TrainTest, AWrappedOptimizerAveragesAsDataParallelDoes) {
  const auto accuracy = [](const std::string& output) {
    const size_t at = output.find("Evaluation accuracy = ");
    EXPECT_NE(at, std::string::npos) << output;
    return at == std::string::npos ? 0 : std::stod(output.substr(at + 22));
  };
  const std::string first = directory_ + "/first";
  Run(1, first);
  const std::string other = directory_ + "/other";
  std::filesystem::copy(first, other, std::filesystem::copy_options::recursive);
  const double parallel = accuracy(Run(2, first));
  EXPECT_NEAR(accuracy(Run(2, other, DistOption("plain"))), parallel, 0.02);
  EXPECT_GT(parallel, 0.3);
}

TEST_F(TrainTest, SaysOfAnEpochWhatSingaSays) {
  const std::string output = Run(1, "", DistOption("half"));
  EXPECT_THAT(output, HasSubstr("Starting Epoch 0:\n"));
  EXPECT_THAT(output, ContainsRegex("Training loss = [0-9.]+, training accuracy = 0\\.[0-9]+\n"));
  EXPECT_THAT(output, ContainsRegex("Evaluation accuracy = 0\\.[0-9]+, Elapsed Time = [0-9.]+s\n"));
}

// The wrapped optimizer exchanges within its call, so its times are not measured.
TEST_F(TrainTest, SaysTheTimesThatWereMeasured) {
  EXPECT_THAT(Run(1, "", DistOption("plain")), ContainsRegex(" s; [1-9][0-9]* bytes per step\n"));
  EXPECT_THAT(Run(1, "", Sync("fp32")),
              ContainsRegex(" s; reducing took [0-9]+ ms, of which [0-9]+ ms came after backward; "
                            "[1-9][0-9]* bytes per step\n"));
}

TEST_F(TrainTest, EveryWayToSynchronizeLeavesEqualParameters) {
  for (const Way& way :
       {Sync("fp16"), Sync("partial"), Sync("topk"), DistOption("plain"), DistOption("half"),
        DistOption("partialUpdate"), DistOption("sparseTopK")}) {
    const std::string checkpoints = directory_ + "/ways_" + way.sync + way.dist_option;
    const std::string output = Run(1, checkpoints, way);
    EXPECT_FALSE(HashIn(output).empty()) << checkpoints;
    EXPECT_THAT(Run(2, checkpoints, way), HasSubstr("resumed from epoch 1\n")) << checkpoints;
  }
}

TEST_F(TrainTest, SaysWhichWaysToSynchronizeThereAre) {
  TrainOptions options;
  options.data_dir = directory_;
  options.sync = "telepathy";
  testing::InProcessWorkers workers(1);
  workers.Run([&](Worker& worker) {
    EXPECT_THAT(Train(worker, options),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("\"telepathy\"; expected")));
  });
  options.dist_option = "telepathy";
  testing::InProcessWorkers others(1);
  others.Run([&](Worker& worker) {
    EXPECT_THAT(Train(worker, options),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("--dist_option telepathy: exp")));
  });
}

TEST_F(TrainTest, WhatWasFinishedIsOnlyEvaluatedAgain) {
  const std::string checkpoints = directory_ + "/checkpoints";
  const std::string first = Run(1, checkpoints);
  const std::string second = Run(1, checkpoints);
  EXPECT_THAT(second, Not(HasSubstr("epoch 1/1")));
  EXPECT_EQ(HashIn(second), HashIn(first));
  const size_t accuracy = first.rfind("test accuracy");
  ASSERT_NE(accuracy, std::string::npos);
  EXPECT_THAT(second, HasSubstr(first.substr(accuracy)));
}

// A worker that fails once the first checkpoint is saved.
class LostAfterSaving : public testing::RejoiningWorker {
 public:
  explicit LostAfterSaving(Worker& here) : RejoiningWorker(here, nullptr) {}

  Status Barrier(std::string_view name, std::chrono::nanoseconds timeout) override {
    const Status status = RejoiningWorker::Barrier(name, timeout);
    return name == "checkpoint/save" ? InternalError("lost") : status;
  }
};

// The surviving rank has evaluated its last epoch, and the new one has not.
//
// Fault (in place): A rank of `examples/mnist_cnn` is lost after the last epoch, with `--in-place`
// -> The others and the replacement evaluate together, and the training ends
TEST_F(TrainTest, InPlace_ARankIsLostAfterTheLastEpoch) {
  TrainOptions options;
  options.device = "cpu";
  options.data_dir = directory_;
  options.checkpoint_dir = directory_ + "/checkpoints";
  options.epochs = 1;
  options.batch_size = 16;
  options.timeout_seconds = 20;
  ::testing::internal::CaptureStdout();
  testing::InProcessWorkers first(2), second(2);
  testing::RejoiningWorker stays(first.worker(0), &second.worker(0));
  LostAfterSaving lost(first.worker(1));
  testing::RejoiningWorker comes(second.worker(1), nullptr);
  std::vector<std::thread> threads;
  threads.emplace_back([&] { EXPECT_OK(Train(stays, options)); });
  threads.emplace_back([&] { EXPECT_THAT(Train(lost, options), StatusIs(StatusCode::kInternal)); });
  threads.emplace_back([&] { EXPECT_OK(Train(comes, options)); });
  for (std::thread& thread : threads) thread.join();
  const std::string output = ::testing::internal::GetCapturedStdout();
  EXPECT_FALSE(HashIn(output).empty());
  EXPECT_THAT(output, ContainsRegex("test accuracy 0\\.[0-9]+\n"));
}

TEST_F(TrainTest, SaysWhatIsWrongWithTheData) {
  TrainOptions options;
  options.data_dir = directory_ + "/nowhere";
  testing::InProcessWorkers workers(1);
  workers.Run([&](Worker& worker) {
    EXPECT_THAT(Train(worker, options),
                StatusIs(StatusCode::kNotFound, HasSubstr("nowhere/train-images")));
  });
}

constexpr std::chrono::seconds kLong(30);

// The loss of another rank shows in the average. If the step did not count then, a training that
// goes on in its process would repeat it.
TEST(WrappedOptimizerTest, APartialUpdateWithoutItsAverageIsAStep) {
  testing::OnEachRank(sockets::ConnectSockets, 2, [](Communicator& communicator) {
    const auto net = std::make_shared<Net>();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    const auto optimizer =
        MakeWrappedOptimizer("partialUpdate", /*sparsity=*/0, {net, sgd, communicator, kLong});
    ASSERT_OK(optimizer);
    const torch::Tensor before = net->fc2->bias.detach().clone();
    // The abort waits until both ranks have their optimizer. The other rank may abort first.
    communicator.Barrier()->Wait(kLong).IgnoreError();
    communicator.Abort();
    EXPECT_OK((*optimizer)->Step(net->fc2->bias.sum(), /*own=*/1, /*all=*/2));
    EXPECT_TRUE(torch::allclose(net->fc2->bias, before - 0.1));
    EXPECT_FALSE((*optimizer)->AfterStep().ok());
  });
}

}  // namespace

}  // namespace cadre::mnist
