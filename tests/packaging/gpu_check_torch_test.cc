// tools/gpu_check with PyTorch of PyPI: what it compiles is compiled, and trains on the CPU. Its
// scripts for two GPUs run with Gloo.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/packaging/unpacked_archive.h"
#include "tests/testing/process.h"
#include "tests/testing/pypi_python.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class GpuCheckTorchTest : public PypiPythonTest {
 protected:
  static nlohmann::json Read(const std::string& path) {
    std::ifstream file(path);
    return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  }

  // Rank 1 of two fails once, in that way, in the midst of sums over Gloo.
  void FailsOnce(const std::string& way, const std::string& says) {
    const std::string result = output_ + "/" + way + ".json";
    ProcessOptions options;
    options.argv = {unpacked_ + "/bin/cadre",
                    "run",
                    "--standalone",
                    "--nproc-per-node",
                    "2",
                    "--max-restarts",
                    "1",
                    "--progress-timeout",
                    "10s",
                    "--log-dir",
                    output_,
                    "--",
                    python_,
                    unpacked_ + "/gpu/nccl_failure.py",
                    way,
                    "gloo",
                    result};
    const auto run = RunToEnd(options, absl::Minutes(4));
    ASSERT_TRUE(run.ok());
    EXPECT_EQ((*run)->Wait(), 0) << OutputOf(**run);
    EXPECT_THAT(OutputOf(**run), AllOf(HasSubstr("rank 1 "), HasSubstr(says)));
    EXPECT_GT(Read(result)["seconds_to_next_sum"], 0) << OutputOf(**run);
  }

  const std::string output_ = MakeTempDir("output");
  const std::string unpacked_ = UnpackedArchive("tools/gpu/gpu_check.tar.gz");
};

TEST_F(GpuCheckTorchTest, AllThatNeedsNoGpuPasses) {
  ProcessOptions options;
  options.argv = {"/usr/bin/python3", unpacked_ + "/gpu_check",
                  "--python",         python_,
                  "--output",         output_,
                  "--minutes",        "20"};
  const auto run = RunToEnd(options, absl::Minutes(21));
  ASSERT_TRUE(run.ok());
  EXPECT_EQ((*run)->Wait(), 0) << OutputOf(**run);
  const nlohmann::json results = Read(output_ + "/gpu_check.json");
  ASSERT_FALSE(results.is_discarded()) << OutputOf(**run);
  EXPECT_EQ(results["failed"], 0) << OutputOf(**run);
  if (results["machine"]["driver"].contains("gpus")) GTEST_SKIP() << "there is a GPU here";
  EXPECT_THAT((*run)->standard_output(), EndsWith(" passed, 0 failed\n"));
  // All others have passed.
  for (const auto& part : results["parts"]) {
    const std::string name = part["name"], figures = part["figures"].dump();
    if (part["result"] == "skipped") {
      EXPECT_THAT(std::string(part["reason"]), HasSubstr("no GPU: ")) << name;
    } else if (name == "tiny step of resnet50 on the CPU, two ranks, Gloo") {
      EXPECT_THAT(figures, AllOf(HasSubstr("\"million_parameters\":25.6"), HasSubstr("\"ranks\":2"),
                                 HasSubstr("\"ddp_alone\":")));
    }
  }
}

TEST_F(GpuCheckTorchTest, ARankThatIsKilledInACollective_IsNamedAndStartedAgain) {
  FailsOnce("killed", "SIGKILL");
}

TEST_F(GpuCheckTorchTest, ARankThatIsStoppedInACollective_IsNamedAndStartedAgain) {
  FailsOnce("stopped", "it is stopped (state T)");
}

}  // namespace
}  // namespace cadre
