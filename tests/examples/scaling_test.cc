// tools/scaling trains cifar_resnet50 on one, two and three ranks, which do not divide the batch.
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST(ScalingTest, PrintsATableAndAPlot) {
  const std::string folder = MakeTempDir("scaling");
  auto run = StartProgram(
      "tools/scaling",
      {"--workers", "1,2,3",
       "--cadre",   std::filesystem::absolute(kCadre),
       "--program", std::filesystem::absolute("examples/cifar_resnet50/cifar_resnet50"),
       "--svg",     folder + "/plot.svg",
       "--json",    folder + "/table.json",
       "--",        "--device",
       "cpu",       "--blocks",
       "1,1,1,1",   "--width",
       "8",         "-b",
       "8",         "-e",
       "1",         "--limit",
       "64"});
  ASSERT_EQ(run->Wait(absl::Minutes(3)), 0) << OutputOf(*run);
  const std::string& said = run->standard_output();
  EXPECT_THAT(said, ContainsRegex("\n +1 +[0-9.]+ +[0-9.]+ +1\\.00 +100\\.0 %\n"));
  EXPECT_THAT(said, ContainsRegex("\n +2 +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ %\n"));
  EXPECT_THAT(said, ContainsRegex("\n +3 +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ %\n"));
  EXPECT_THAT(said, ContainsRegex("\n +1 +#+ *\\|?#* +1\\.00\n +2 +#+ *\\|#* *[0-9.]+\n"));
  EXPECT_THAT(ReadFileOrEmpty(folder + "/plot.svg"), HasSubstr("<polyline"));
  EXPECT_THAT(ReadFileOrEmpty(folder + "/table.json"), HasSubstr("\"workers\": 3"));
}

}  // namespace
}  // namespace cadre
