// ResNet-50 on CIFAR-10, for a few steps on two ranks.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "examples/cifar_resnet50/cifar.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/end_to_end/launch.h"

namespace cadre {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kTraining = absl::Minutes(3);

class CifarResNet50Test : public ::testing::Test {
 protected:
  void SetUp() override {
    data_ = MakeTempDir("cifar");
    ASSERT_OK(cifar::WriteImages(cifar::DrawImages(32, 1), data_ + "/data_batch_1.bin"));
    ASSERT_OK(cifar::WriteImages(cifar::DrawImages(16, 2), data_ + "/data_batch_2.bin"));
    ASSERT_OK(cifar::WriteImages(cifar::DrawImages(5, 3), data_ + "/test_batch.bin"));
  }

  std::unique_ptr<Process> Start(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {
        "--nproc-per-node", "2",  "--", "examples/cifar_resnet50/cifar_resnet50",
        "--data-dir",       data_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return StartStandalone(arguments);
  }

  std::string data_;
};

TEST_F(CifarResNet50Test, TrainsTheWholeNetwork) {
  auto run = Start({"--batch-size", "8", "--epochs", "1", "--limit", "24"});
  ASSERT_EQ(run->Wait(kTraining), 0) << Said(*run);
  EXPECT_THAT(run->standard_output(),
              HasSubstr("24 training images, 5 test images, 2 ranks with batches of 4\n"));
  EXPECT_THAT(run->standard_output(),
              ContainsRegex("Epoch \\[1/1\\], Step \\[3/3\\], Loss: [0-9.]+, "
                            "Time data load: [0-9.]+ms, Time training: [0-9.]+ms\n"));
  EXPECT_THAT(run->standard_output(), ContainsRegex("Test accuracy: [01]\\.[0-9]+\n"));
  EXPECT_THAT(run->standard_output(), ContainsRegex(">>> Training complete in: [0-9.]+ s\n"));
}

TEST_F(CifarResNet50Test, ASmallOneLogsEveryTenStepsAndResumesAfterItsLastEpoch) {
  const std::vector<std::string> small = {
      "--batch-size", "4", "--blocks",         "1,1,1,1",
      "--width",      "8", "--checkpoint-dir", MakeTempDir("checkpoints"),
      "--epochs"};
  std::vector<std::string> once = small, twice = small;
  once.push_back("1");
  twice.push_back("2");
  auto first = Start(once);
  ASSERT_EQ(first->Wait(kTraining), 0) << Said(*first);
  EXPECT_THAT(first->standard_output(), HasSubstr("Epoch [1/1], Step [10/12], Loss: "));
  EXPECT_THAT(first->standard_output(), Not(HasSubstr("Step [11/12]")));
  EXPECT_THAT(first->standard_output(), Not(HasSubstr("resumed")));

  auto second = Start(twice);
  ASSERT_EQ(second->Wait(kTraining), 0) << Said(*second);
  EXPECT_THAT(second->standard_output(), HasSubstr("resumed after epoch 1\n"));
  EXPECT_THAT(second->standard_output(), Not(HasSubstr("Epoch [1/2]")));
  EXPECT_THAT(second->standard_output(), HasSubstr("Epoch [2/2], Step [12/12], Loss: "));
}

TEST_F(CifarResNet50Test, ABatchThatCannotBeDividedIsRefused) {
  auto run = Start({"--batch-size", "7"});
  EXPECT_EQ(run->Wait(), 1);
  EXPECT_THAT(Said(*run), HasSubstr("--batch-size 7 cannot be divided by 2 ranks; the nearest that "
                                    "can is 8"));
}

}  // namespace
}  // namespace cadre
