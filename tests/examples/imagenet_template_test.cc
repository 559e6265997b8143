// The ImageNet template, on two nodes by two workers and on folders of pictures.
#include <sys/stat.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "examples/imagenet_template/picture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/end_to_end/launch.h"

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
  ASSERT_EQ(a->Wait(kTraining), 0) << Said(*a) << Said(*b);
  ASSERT_EQ(b->Wait(kTraining), 0) << Said(*a) << Said(*b);
  const std::string output = a->standard_output() + b->standard_output();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(output,
                HasSubstr(absl::StrCat("rank ", rank, " of 4: batches of 5, 2 data workers\n")));
  }
  // 40 pictures for 4 ranks with batches of 5.
  EXPECT_THAT(output, ContainsRegex("Epoch: \\[1\\]\\[2/2\\]  Time [0-9.]+  Data [0-9.]+  "
                                    "Loss [0-9.]+  Acc@1 [0-9.]+  Acc@5 [0-9.]+\n"));
  EXPECT_THAT(output, ContainsRegex(" \\* Loss [0-9.]+ Acc@1 [0-9.]+ Acc@5 [0-9.]+ on 8 pictures"));
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
  ASSERT_EQ(first->Wait(kTraining), 0) << Said(*first);
  EXPECT_THAT(first->standard_output(), Not(HasSubstr("resumed")));
  EXPECT_NE(ReadFileOrEmpty(checkpoints + "/model_best.pt"), "");

  auto second = start({"--epochs", "2", "--checkpoint-dir", checkpoints});
  ASSERT_EQ(second->Wait(kTraining), 0) << Said(*second);
  EXPECT_THAT(second->standard_output(), HasSubstr("resumed after epoch 1, best Acc@1 "));
  EXPECT_THAT(second->standard_output(), Not(HasSubstr("Epoch: [1]")));
  EXPECT_THAT(second->standard_output(), HasSubstr("Epoch: [2]"));

  auto evaluation = start({"--evaluate", "--resume", checkpoints + "/model_best.pt"});
  ASSERT_EQ(evaluation->Wait(kTraining), 0) << Said(*evaluation);
  EXPECT_THAT(evaluation->standard_output(), HasSubstr("resumed after epoch "));
  EXPECT_THAT(evaluation->standard_output(), HasSubstr(" on 8 pictures"));
  EXPECT_THAT(evaluation->standard_output(), Not(HasSubstr("Epoch: ")));
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
        ASSERT_OK(imagenet::WritePpm(picture, absl::StrCat(data, set, name, "/", i, ".ppm")));
      }
    }
  }
  auto run = StartStandalone(Small({"--nproc-per-node", "2"},
                                   {"--batch-size", "4", "--workers", "2", "--epochs", "1", data}));
  ASSERT_EQ(run->Wait(kTraining), 0) << Said(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("Epoch: [1][2/2]"));
  EXPECT_THAT(run->standard_output(), HasSubstr(" on 8 pictures"));
}

TEST(ImageNetTemplateTest, AWorldSizeThatIsNotTheJobsIsRefused) {
  auto run = StartStandalone(Small({"--nproc-per-node", "2"}, {"--world-size", "2"}));
  EXPECT_EQ(run->Wait(kTraining), 1);
  EXPECT_THAT(Said(*run), HasSubstr("--world-size 2 is given in nodes, and the job has 1"));
}

}  // namespace
}  // namespace cadre
