// SINGA's MNIST in one file, on digits that are drawn.
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "examples/mnist_cnn/digits.h"
#include "examples/mnist_cnn/idx.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/examples/number_after.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr char kProgram[] = "examples/singa_mnist/singa_mnist";
constexpr absl::Duration kTraining = absl::Minutes(3);

TEST(SingaMnistTest, TrainsInEveryWay) {
  const std::string data = MakeTempDir("digits");
  ASSERT_OK(mnist::WriteImageSet(mnist::DrawDigits(1000, 1), data, "train"));
  ASSERT_OK(mnist::WriteImageSet(mnist::DrawDigits(200, 2), data, "t10k"));
  for (const std::vector<std::string>& option : {std::vector<std::string>{"plain"},
                                                 {"half"},
                                                 {"partialUpdate"},
                                                 {"sparseTopK", "-s", "0.05"},
                                                 {"sparseThreshold", "-s", "0.01"}}) {
    std::vector<std::string> arguments = {
        "--nproc-per-node", "2", "--", kProgram, data, "-m", "4", "-b", "16", "-l", "0.02", "-d"};
    arguments.insert(arguments.end(), option.begin(), option.end());
    auto run = StartStandalone(arguments);
    ASSERT_EQ(run->Wait(kTraining), 0) << OutputOf(*run);
    const std::string& said = run->standard_output();
    EXPECT_THAT(said, HasSubstr("Starting Epoch 2:\n"));
    EXPECT_THAT(said, ContainsRegex("Training loss = [0-9]+\\.[0-9]{6}, training accuracy = "
                                    "[01]\\.[0-9]{6}\n"));
    const std::string last = said.substr(said.rfind("Starting Epoch"));
    EXPECT_GT(NumberAfter(last, "Evaluation accuracy = "), 0.5) << option[0] << said;
  }
}

TEST(SingaMnistTest, SaysWhichFileIsMissing) {
  auto run = StartStandalone({"--nproc-per-node", "1", "--", kProgram, "/nowhere"});
  EXPECT_EQ(run->Wait(kTraining), 1);
  EXPECT_THAT(OutputOf(*run),
              HasSubstr("/nowhere/train-images-idx3-ubyte: expected a file of MNIST's"));
}

}  // namespace
}  // namespace cadre
