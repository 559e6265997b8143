// ResNet-50 on CIFAR-10, for a few steps on two ranks.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "examples/cifar_resnet50/cifar.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"

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
  // A network that takes no time, in a folder of its own.
  std::unique_ptr<Process> StartSmall(const std::string& folder,
                                      const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {
        "-C",
        folder,
        std::filesystem::absolute(kCadre),
        "run",
        "--standalone",
        "--nproc-per-node",
        "2",
        std::filesystem::absolute("examples/cifar_resnet50/cifar_resnet50"),
        "--data-dir",
        data_,
        "--blocks",
        "1,1,1,1",
        "--width",
        "8"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return StartProgram("/usr/bin/env", arguments);
  }

  std::string data_;
};

TEST_F(CifarResNet50Test, TrainsTheWholeNetwork) {
  auto run = Start({"-b", "8", "-e", "1", "--limit", "24", "--device", "cpu", "--no-save"});
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr(">>> Training on 2 GPUs of 1 nodes (--device cpu"));
  for (const char* process : {"0 corresponds to GPU 0", "1 corresponds to GPU 1"}) {
    EXPECT_THAT(run->standard_output(),
                HasSubstr(absl::StrCat("- Process ", process, " of node 0\n")));
  }
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
  ASSERT_EQ(first->Wait(kTraining), 0) << OutputOf(*first);
  EXPECT_THAT(first->standard_output(), HasSubstr("Epoch [1/1], Step [10/12], Loss: "));
  EXPECT_THAT(first->standard_output(), Not(HasSubstr("Step [11/12]")));
  EXPECT_THAT(first->standard_output(), Not(HasSubstr("resumed")));

  auto second = Start(twice);
  ASSERT_EQ(second->Wait(kTraining), 0) << OutputOf(*second);
  EXPECT_THAT(second->standard_output(), HasSubstr("resumed after epoch 1\n"));
  EXPECT_THAT(second->standard_output(), Not(HasSubstr("Epoch [1/2]")));
  EXPECT_THAT(second->standard_output(), HasSubstr("Epoch [2/2], Step [12/12], Loss: "));
}

TEST_F(CifarResNet50Test, BeginsWithTheParametersOfAFile) {
  const std::string folder = MakeTempDir("begin");
  auto first = StartSmall(folder, {"-b", "4", "-e", "2", "--lr", "0.1"});
  ASSERT_EQ(first->Wait(kTraining), 0) << OutputOf(*first);
  for (const char* epoch : {"1", "2"}) {
    EXPECT_TRUE(std::filesystem::exists(
        absl::StrCat(folder, "/checkpoint/2GPU_", epoch, "epoch.checkpoint")));
  }
  // Nothing is learned, so that the same parameters have the same losses.
  const auto start = [&](const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"-b", "4", "-e", "1", "--lr", "0", "--no-save"};
    flags.insert(flags.end(), more.begin(), more.end());
    return StartSmall(folder, flags);
  };
  const auto last_loss = [](const Process& run) {
    const std::string before = "Step [12/12], Loss: ";
    const size_t at = run.standard_output().find(before);
    EXPECT_NE(at, std::string::npos) << OutputOf(run);
    return at == std::string::npos ? "" : run.standard_output().substr(at + before.size(), 6);
  };
  auto fresh = start({});
  ASSERT_EQ(fresh->Wait(kTraining), 0) << OutputOf(*fresh);
  auto second = start({"-c", "checkpoint/2GPU_2epoch.checkpoint"});
  ASSERT_EQ(second->Wait(kTraining), 0) << OutputOf(*second);
  EXPECT_THAT(second->standard_output(),
              HasSubstr("begins with the parameters of checkpoint/2GPU_2epoch.checkpoint\n"));
  EXPECT_NE(last_loss(*second), last_loss(*fresh));

  auto missing = start({"-c", "checkpoint/9GPU_1epoch.checkpoint"});
  EXPECT_EQ(missing->Wait(kTraining), 1);
  EXPECT_THAT(OutputOf(*missing),
              HasSubstr("--checkpoint checkpoint/9GPU_1epoch.checkpoint: there is no such file"));
}

TEST_F(CifarResNet50Test, ADeviceThatIsNotThereIsRefused) {
  // Where there is a GPU, it is hidden.
  auto run = StartCadre(
      {"run", "--standalone", "--nproc-per-node", "1", "--",
       "examples/cifar_resnet50/cifar_resnet50", "--data-dir", data_, "--device", "cuda"},
      {{"CUDA_VISIBLE_DEVICES", "-1"}});
  EXPECT_EQ(run->Wait(kTraining), 1);
  EXPECT_THAT(OutputOf(*run), HasSubstr("--device cuda: libtorch finds no GPU"));
}

// As `128 // size` has it where three ranks train.
TEST_F(CifarResNet50Test, ABatchThatCannotBeDividedIsRoundedDown) {
  auto run = StartSmall(MakeTempDir("rounded"), {"-b", "7", "-e", "1", "--no-save"});
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("2 ranks with batches of 3\n"));
  EXPECT_THAT(run->standard_output(), HasSubstr("Epoch [1/1], Step [8/8], Loss: "));
}

TEST_F(CifarResNet50Test, ABatchThatLeavesARankOneImageIsRefused) {
  auto run = Start({"--batch-size", "3"});
  EXPECT_EQ(run->Wait(), 1);
  EXPECT_THAT(OutputOf(*run), HasSubstr("--batch-size 3 is too small for 2 ranks"));
}

}  // namespace
}  // namespace cadre
