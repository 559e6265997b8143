#include "train.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/status_matchers.h"
#include "digits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "idx.h"
#include "worker_runtime/testing/in_process_workers.h"

namespace cadre::mnist {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TrainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/train_XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    ASSERT_OK(WriteImageSet(DrawDigits(640, 1), directory_, "train"));
    ASSERT_OK(WriteImageSet(DrawDigits(101, 2), directory_, "t10k"));
  }

  // The output of two ranks.
  std::string Run(int epochs, const std::string& checkpoint_dir,
                  const std::string& sync = "fp32") const {
    TrainOptions options;
    options.sync = sync;
    options.data_dir = directory_;
    options.checkpoint_dir = checkpoint_dir;
    options.epochs = epochs;
    options.batch_size = 16;
    ::testing::internal::CaptureStdout();
    testing::InProcessWorkers workers(2);
    workers.Run([&](Worker& worker) { EXPECT_OK(Train(worker, options)); });
    return ::testing::internal::GetCapturedStdout();
  }

  void ExpectResumingChangesNothing(const std::string& sync) const;

  std::string directory_;
};

// "0123456789abcdef" of "parameters equal on 2 ranks: 0123456789abcdef".
std::string HashIn(const std::string& output) {
  const std::string before = "parameters equal on 2 ranks: ";
  const size_t at = output.find(before);
  EXPECT_NE(at, std::string::npos) << output;
  return at == std::string::npos ? "" : output.substr(at + before.size(), 16);
}

void TrainTest::ExpectResumingChangesNothing(const std::string& sync) const {
  const std::string interrupted = directory_ + "/interrupted_" + sync;
  const std::string whole = directory_ + "/whole_" + sync;
  const std::string first = Run(1, interrupted, sync);
  EXPECT_THAT(first, Not(HasSubstr("resumed")));
  // The ranks of this test share libtorch's random numbers, so what follows starts from one
  // checkpoint.
  std::filesystem::copy(interrupted, whole, std::filesystem::copy_options::recursive);
  EXPECT_THAT(Run(2, interrupted, sync), HasSubstr("resumed from epoch 1\n"));
  const std::string resumed_twice = Run(3, interrupted, sync);
  EXPECT_THAT(resumed_twice, HasSubstr("resumed from epoch 2\n"));
  EXPECT_THAT(resumed_twice, Not(HasSubstr("epoch 2/3")));
  const std::string resumed_once = Run(3, whole, sync);
  EXPECT_THAT(resumed_once, HasSubstr("epoch 2/3"));
  EXPECT_EQ(HashIn(resumed_twice), HashIn(resumed_once));
  EXPECT_NE(HashIn(first), HashIn(resumed_once));
}

TEST_F(TrainTest, AResumedTrainingEndsWithTheSameParameters) {
  ExpectResumingChangesNothing("fp32");
}

// The residual of every rank is part of the checkpoint.
TEST_F(TrainTest, AResumedSparseTrainingEndsWithTheSameParameters) {
  ExpectResumingChangesNothing("threshold");
}

TEST_F(TrainTest, EveryWayToSynchronizeLeavesEqualParameters) {
  for (const char* sync : {"fp16", "partial", "topk"}) {
    const std::string checkpoints = directory_ + "/ways_" + sync;
    const std::string output = Run(1, checkpoints, sync);
    EXPECT_FALSE(HashIn(output).empty()) << sync;
    EXPECT_THAT(Run(2, checkpoints, sync), HasSubstr("resumed from epoch 1\n")) << sync;
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

TEST_F(TrainTest, SaysWhatIsWrongWithTheData) {
  TrainOptions options;
  options.data_dir = directory_ + "/nowhere";
  testing::InProcessWorkers workers(1);
  workers.Run([&](Worker& worker) {
    EXPECT_THAT(Train(worker, options),
                StatusIs(StatusCode::kNotFound, HasSubstr("nowhere/train-images")));
  });
}

}  // namespace
}  // namespace cadre::mnist
