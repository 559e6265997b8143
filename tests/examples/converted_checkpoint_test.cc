// Parameters of a C++ program go to Python and back, by the functions of docs/checkpoints.md.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"
#include "tests/testing/pypi_python.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTraining = absl::Minutes(3);

class ConvertedCheckpointTest : public PypiPythonTest {
 protected:
  // A small ResNet that learns nothing, for an epoch of one step; its files are in `folder`.
  std::unique_ptr<Process> Train(const std::string& folder,
                                 const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {
        "-C",
        folder,
        std::filesystem::absolute(kCadre),
        "run",
        "--standalone",
        "--nproc-per-node",
        "1",
        std::filesystem::absolute("examples/cifar_resnet50/cifar_resnet50"),
        "--device",
        "cpu",
        "--blocks",
        "1,1,1,1",
        "--width",
        "8",
        "--limit",
        "4",
        "-b",
        "4",
        "-e",
        "1",
        "--lr",
        "0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return StartProgram("/usr/bin/env", arguments);
  }
  std::unique_ptr<Process> Convert(const std::vector<std::string>& files) const {
    std::vector<std::string> arguments = {"-W", "ignore", "tests/examples/converted_checkpoint.py",
                                          "docs/checkpoints.md"};
    arguments.insert(arguments.end(), files.begin(), files.end());
    return StartProgram(python_, arguments);
  }
};

TEST_F(ConvertedCheckpointTest, ToPythonAndBack) {
  const std::string folder = MakeTempDir("converted");
  const std::string saved = folder + "/checkpoint/1GPU_1epoch.checkpoint";
  auto first = Train(folder, {});
  ASSERT_EQ(first->Wait(kTraining), 0) << OutputOf(*first);
  auto there = Convert({saved, folder + "/cpp.pt", folder + "/python.pt"});
  ASSERT_EQ(there->Wait(kTraining), 0) << OutputOf(*there);

  auto refused = Train(folder, {"-c", "python.pt"});
  EXPECT_EQ(refused->Wait(kTraining), 1);
  EXPECT_THAT(OutputOf(*refused),
              HasSubstr("INVALID_ARGUMENT: python.pt is not an archive of libtorch's"));
  EXPECT_THAT(OutputOf(*refused), HasSubstr("as docs/checkpoints.md describes"));

  auto second = Train(folder, {"-c", "cpp.pt"});
  ASSERT_EQ(second->Wait(kTraining), 0) << OutputOf(*second);
  EXPECT_THAT(second->standard_output(), HasSubstr("begins with the parameters of cpp.pt\n"));
  auto back = Convert({folder + "/cpp.pt", saved});
  ASSERT_EQ(back->Wait(kTraining), 0) << OutputOf(*back);
  EXPECT_THAT(back->standard_output(), HasSubstr(" tensors, the same parameters\n"));
}

}  // namespace
}  // namespace cadre
