// The ImageNet template, on two nodes by two workers and on folders of pictures.
#include <sys/stat.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "examples/imagenet_template/jpeg.h"
#include "examples/imagenet_template/picture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kProgram[] = "examples/imagenet_template/imagenet_template";
constexpr absl::Duration kTraining = absl::Minutes(3);

// A network and pictures small enough for a test.
std::vector<std::string> Small(const std::vector<std::string>& launcher_flags,
                               const std::vector<std::string>& flags) {
  std::vector<std::string> all = launcher_flags;
  all.insert(all.end(), {"--", kProgram, "--side", "32", "--blocks", "1,1,1,1", "--width", "8",
                         "--pictures", "40"});
  all.insert(all.end(), flags.begin(), flags.end());
  return all;
}

TEST(ImageNetTemplateTest, TwoNodesShareBatchesAndDataWorkers) {
  const int port = FreePort();
  const std::vector<std::string> arguments =
      Small({"--nproc-per-node", "2"}, {"--world-size", "2", "--batch-size", "10", "--workers", "3",
                                        "--epochs", "1", "--print-freq", "1"});
  auto a = StartNode(port, "2", 0, arguments);
  auto b = StartNode(port, "2", 1, arguments);
  ASSERT_EQ(a->Wait(kTraining), 0) << OutputOf(*a) << OutputOf(*b);
  ASSERT_EQ(b->Wait(kTraining), 0) << OutputOf(*a) << OutputOf(*b);
  const std::string output = a->standard_output() + b->standard_output();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(output,
                HasSubstr(absl::StrCat("rank ", rank, " of 4: batches of 5, 2 data workers\n")));
  }
  // 40 pictures for 4 ranks with batches of 5.
  const std::string both = " +[0-9.]+ \\( *[0-9.]+\\)", loss = " [0-9.e+-]+ \\([0-9.e+-]+\\)";
  EXPECT_THAT(output,
              ContainsRegex(absl::StrCat("Epoch: \\[0\\]\\[2/2\\]\tTime", both, "\tData", both,
                                         "\tLoss", loss, "\tAcc@1", both, "\tAcc@5", both, "\n")));
  EXPECT_THAT(output, ContainsRegex(absl::StrCat("Test: \\[1/1\\]\tTime", both, "\tLoss", loss,
                                                 "\tAcc@1", both, "\tAcc@5", both, "\n")));
  EXPECT_THAT(output, ContainsRegex(" \\* Acc@1 [0-9.]+ Acc@5 [0-9.]+\n"));
  EXPECT_THAT(output, ContainsRegex("mean loss [0-9.]+ on 8 pictures of all ranks\n"));
  EXPECT_THAT(output, HasSubstr("parameters equal on 4 ranks: "));
}

TEST(ImageNetTemplateTest, ResumesAndKeepsTheBest) {
  const std::string checkpoints = MakeTempDir("checkpoints");
  const auto start = [&](const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--batch-size", "8", "--workers", "0"};
    flags.insert(flags.end(), more.begin(), more.end());
    return StartStandalone(Small({"--nproc-per-node", "2"}, flags));
  };
  auto first = start({"--epochs", "1", "--checkpoint-dir", checkpoints});
  ASSERT_EQ(first->Wait(kTraining), 0) << OutputOf(*first);
  EXPECT_THAT(first->standard_output(), Not(HasSubstr("resumed")));
  EXPECT_NE(ReadFileOrEmpty(checkpoints + "/model_best.pt"), "");

  auto second = start({"--epochs", "2", "--checkpoint-dir", checkpoints});
  ASSERT_EQ(second->Wait(kTraining), 0) << OutputOf(*second);
  EXPECT_THAT(second->standard_output(), HasSubstr("resumed after epoch 1, best Acc@1 "));
  EXPECT_THAT(second->standard_output(), Not(HasSubstr("Epoch: [0]")));
  EXPECT_THAT(second->standard_output(), HasSubstr("Epoch: [1]"));

  auto evaluation = start({"--evaluate", "--resume", checkpoints + "/model_best.pt"});
  ASSERT_EQ(evaluation->Wait(kTraining), 0) << OutputOf(*evaluation);
  EXPECT_THAT(evaluation->standard_output(), HasSubstr("resumed after epoch "));
  EXPECT_THAT(evaluation->standard_output(), HasSubstr(" on 8 pictures"));
  EXPECT_THAT(evaluation->standard_output(), Not(HasSubstr("Epoch: ")));

  auto other = start({"--arch", "resnet50", "--resume", checkpoints + "/model_best.pt"});
  EXPECT_EQ(other->Wait(kTraining), 1);
  EXPECT_THAT(OutputOf(*other),
              HasSubstr("model_best.pt holds a resnet18, and --arch is resnet50"));
}

TEST(ImageNetTemplateTest, ReadsFoldersOfClasses) {
  const std::string data = MakeTempDir("pictures");
  for (const std::string set : {"/train", "/val"}) {
    ASSERT_EQ(mkdir((data + set).c_str(), 0700), 0);
    for (const std::string name : {"/dark", "/light"}) {
      ASSERT_EQ(mkdir((data + set + name).c_str(), 0700), 0);
      const uint8_t level = name == "/dark" ? 20 : 220;
      for (int i = 0; i < 4; ++i) {
        const imagenet::Picture picture = {50, 40, std::vector<uint8_t>(50 * 40 * 3, level)};
        const std::string path = absl::StrCat(data, set, name, "/", i);
        ASSERT_OK(i % 2 == 0 ? imagenet::WritePpm(picture, path + ".ppm")
                             : imagenet::WriteJpeg(picture, path + ".JPEG", /*quality=*/90));
      }
    }
  }
  auto run =
      StartStandalone(Small({"--nproc-per-node", "2"}, {"--batch-size", "4", "--workers", "2",
                                                        "--epochs", "1", "-p", "1", data}));
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("Epoch: [0][2/2]"));
  EXPECT_THAT(run->standard_output(), HasSubstr(" on 8 pictures"));
}

// As PyTorch's page says it: nobody has started ranks.
TEST(ImageNetTemplateTest, StartsItsRanksItself) {
  auto run = StartProgram(kProgram, {"-a",
                                     "resnet18",
                                     "--dist-url",
                                     "tcp://127.0.0.1:23456",
                                     "--dist-backend",
                                     "nccl",
                                     "--multiprocessing-distributed",
                                     "--world-size",
                                     "1",
                                     "--rank",
                                     "0",
                                     "--device",
                                     "cpu",
                                     "--dummy",
                                     "--side",
                                     "32",
                                     "--width",
                                     "8",
                                     "--pictures",
                                     "20",
                                     "--batch-size",
                                     "10",
                                     "--epochs",
                                     "1"});
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
  for (const char* line : {"using CPU, this will be slow\n", "=> creating model 'resnet18'\n",
                           "--dist-backend nccl: Cadre's own reduces the gradients",
                           "--dist-url tcp://127.0.0.1:23456: not used",
                           "rank 0 of 1: batches of 10, 4 data workers\n", "Epoch: [0][1/2]\tTime ",
                           "parameters equal on 1 ranks: "}) {
    EXPECT_THAT(run->standard_output(), HasSubstr(line));
  }
}

TEST(ImageNetTemplateTest, TrainsAlexNetAndLooksThroughVgg) {
  auto alexnet = StartProgram(
      kProgram, {"--arch", "alexnet", "--side", "64", "--pictures", "10", "--batch-size", "5",
                 "--epochs", "1", "--device", "cpu", "--gpu", "0"});
  ASSERT_EQ(alexnet->Wait(kTraining), 0) << OutputOf(*alexnet);
  EXPECT_THAT(alexnet->standard_output(), HasSubstr("=> creating model 'alexnet'\n"));
  EXPECT_THAT(alexnet->standard_output(), ContainsRegex(" \\* Acc@1 [0-9.]+ Acc@5 [0-9.]+\n"));
  auto vgg = StartProgram(kProgram, {"--arch", "vgg16", "--side", "32", "--pictures", "10",
                                     "--batch-size", "2", "--evaluate", "--device", "cpu"});
  ASSERT_EQ(vgg->Wait(kTraining), 0) << OutputOf(*vgg);
  EXPECT_THAT(vgg->standard_output(), ContainsRegex(" \\* Acc@1 [0-9.]+ Acc@5 [0-9.]+\n"));
}

// The same line under a launcher, which has made the meeting place.
TEST(ImageNetTemplateTest, TheTemplatesOwnFlagsAreTakenUnderALauncher) {
  auto run = StartStandalone(Small({"--nproc-per-node", "2"},
                                   {"--dist-url", "tcp://127.0.0.1:23456", "--dist-backend", "nccl",
                                    "--multiprocessing-distributed", "--world-size", "1", "--rank",
                                    "0", "--device", "cpu", "--batch-size", "8", "--epochs", "1"}));
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("--dist-url tcp://127.0.0.1:23456: not used"));
  EXPECT_THAT(run->standard_output(), HasSubstr("parameters equal on 2 ranks: "));
}

// Without a flag that says otherwise, the template's DataParallel.
TEST(ImageNetTemplateTest, OneProcessTakesAllDevices) {
  auto run = StartProgram(
      kProgram, {"--device", "cpu", "--dummy", "--side", "32", "--blocks", "1,1,1,1", "--width",
                 "8", "--pictures", "20", "--batch-size", "10", "--epochs", "1"});
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("one process, devices: 1\n"));
  EXPECT_THAT(run->standard_output(), HasSubstr("Epoch: [0][1/2]\tTime "));
  EXPECT_THAT(run->standard_output(), ContainsRegex(" \\* Acc@1 [0-9.]+ Acc@5 [0-9.]+\n"));
}

TEST(ImageNetTemplateTest, WhatCannotBeDoneIsRefused) {
  auto run = StartProgram(kProgram, {"--dist-url", "elsewhere:23456", "--device", "cpu"});
  EXPECT_EQ(run->Wait(kTraining), 1);
  EXPECT_THAT(OutputOf(*run), HasSubstr("--dist-url elsewhere:23456: expected env://, tcp://"));
  auto pretrained = StartProgram(kProgram, {"--pretrained"});
  EXPECT_EQ(pretrained->Wait(kTraining), 1);
  EXPECT_THAT(OutputOf(*pretrained),
              HasSubstr("--pretrained: this program downloads no parameters"));
}

TEST(ImageNetTemplateTest, AWorldSizeThatIsNotTheJobsIsRefused) {
  auto run = StartStandalone(Small({"--nproc-per-node", "2"}, {"--world-size", "2"}));
  EXPECT_EQ(run->Wait(kTraining), 1);
  EXPECT_THAT(OutputOf(*run), HasSubstr("--world-size 2 is given in nodes, and the job has 1"));
}

}  // namespace
}  // namespace cadre
