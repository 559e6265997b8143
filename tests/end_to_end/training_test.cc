// Real training under real launchers: the MNIST example, and an unmodified PyTorch DDP script.
#include <signal.h>
#include <stdlib.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kMnist[] = "examples/mnist_cnn/mnist_cnn";
constexpr absl::Duration kTraining = absl::Minutes(4);

double Accuracy(const std::string& output) {
  const size_t at = output.rfind("test accuracy ");
  double accuracy = -1;
  if (at != std::string::npos) {
    EXPECT_TRUE(absl::SimpleAtod(output.substr(at + 14, 6), &accuracy)) << output.substr(at, 40);
  }
  return accuracy;
}

std::vector<std::string> Mnist(const std::string& data_dir, const std::string& checkpoints,
                               const std::vector<std::string>& more) {
  std::vector<std::string> command = {
      "--nproc-per-node", "2",        "--max-restarts", "2",    "--",         kMnist,
      "--batch-size",     "64",       "--lr",           "0.05", "--momentum", "0.9",
      "--checkpoint-dir", checkpoints};
  if (!data_dir.empty()) {
    command.push_back("--data-dir");
    command.push_back(data_dir);
  }
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

// Fault (checkpoint): A worker is killed during training -> Training resumes from the last
// checkpoint, and parameters are bitwise equal on all ranks
TEST(TrainingTest, DrawnDigits_WorkerKilledInEpochTwo_ResumesAndEndsEqual) {
  auto run = StartStandalone(
      Mnist("", MakeTempDir("checkpoints"),
            {"--epochs", "3", "--limit", "2048", "--fail-rank", "1", "--fail-epoch", "2"}));
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
  EXPECT_THAT(OutputOf(*run),
              AllOf(HasSubstr("resumed from epoch"), HasSubstr("parameters equal on 2 ranks")));
  EXPECT_GE(Accuracy(run->standard_output()), 0.8) << OutputOf(*run);
}

// The real thing: CADRE_MNIST_DIR holds the IDX files (7,936 training images and the full test
// set).
class RealMnistTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* directory = getenv("CADRE_MNIST_DIR");
    if (directory == nullptr) GTEST_SKIP() << "CADRE_MNIST_DIR does not name MNIST's files";
    data_dir_ = directory;
  }
  std::string data_dir_;
};

TEST_F(RealMnistTest, ThreeEpochs_Reach096) {
  auto run = StartStandalone(Mnist(data_dir_, MakeTempDir("checkpoints"), {"--epochs", "3"}));
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(), HasSubstr("parameters equal on 2 ranks"));
  EXPECT_GE(Accuracy(run->standard_output()), 0.96) << OutputOf(*run);
}

TEST_F(RealMnistTest, WorkerKilledInEpochTwo_ResumesAndReaches096) {
  auto run = StartStandalone(Mnist(data_dir_, MakeTempDir("checkpoints"),
                                   {"--epochs", "3", "--fail-rank", "1", "--fail-epoch", "2"}));
  ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
  EXPECT_THAT(run->standard_output(),
              AllOf(HasSubstr("resumed from epoch"), HasSubstr("parameters equal on 2 ranks")));
  EXPECT_GE(Accuracy(run->standard_output()), 0.96) << OutputOf(*run);
}

TEST(DdpScriptTest, TwoNodesByTwo_WorkerKilledOnce_FinishesFromItsCheckpoint) {
  if (system("/usr/bin/python3 -c 'import torch' 2>/dev/null") != 0) {
    GTEST_SKIP() << "python3-torch is not installed";
  }
  const int port = FreePort();
  const std::string directory = MakeTempDir("ddp");
  const std::vector<std::string> arguments = {"--nproc-per-node",
                                              "2",
                                              "--max-restarts",
                                              "1",
                                              "--",
                                              "tests/compatibility/ddp_script.py",
                                              directory + "/model.pt",
                                              "4"};
  const std::map<std::string, std::string> env = {{"PYTHON_EXEC", "/usr/bin/python3"},
                                                  {"DDP_SCRIPT_FAIL_RANK", "3"},
                                                  {"GLOO_SOCKET_IFNAME", "lo"}};
  auto a = StartNode(port, "2", 0, arguments, env);
  auto b = StartNode(port, "2", 1, arguments, env);
  ASSERT_EQ(a->Wait(kTraining), 0) << OutputOf(*a) << OutputOf(*b);
  ASSERT_EQ(b->Wait(kTraining), 0) << OutputOf(*b);
  EXPECT_THAT(absl::StrCat(OutputOf(*a), OutputOf(*b)), HasSubstr("resumed"));
}

}  // namespace
}  // namespace cadre
