// The program without libtorch trains, on any number of ranks.
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/end_to_end/launch.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr char kProgram[] = "examples/plain_cpp/plain_cpp";

class PlainCppTest : public ::testing::TestWithParam<int> {};

TEST_P(PlainCppTest, EveryRankFindsTheLine) {
  const int ranks = GetParam();
  auto run = StartStandalone({"--nproc-per-node", absl::StrCat(ranks), "--", kProgram});
  ASSERT_EQ(run->Wait(absl::Minutes(1)), 0) << Said(*run);
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_THAT(run->standard_output(),
                HasSubstr(absl::StrCat("rank ", rank, " of ", ranks, ": y = 3.00 x + 2.00\n")));
  }
}

// Three ranks do not divide the points evenly.
INSTANTIATE_TEST_SUITE_P(Ranks, PlainCppTest, ::testing::Values(1, 2, 3));

TEST(PlainCppTest, NotStartedByCadre_SaysSo) {
  ProcessOptions options;
  options.argv = {kProgram};
  auto run = RunToEnd(options);
  ASSERT_OK(run);
  EXPECT_EQ((*run)->Wait(), 1);
  EXPECT_THAT((*run)->standard_error(), HasSubstr("cadre run"));
}

}  // namespace
}  // namespace cadre
