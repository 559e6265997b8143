// The programs without libtorch, in C++ and in C, train on any number of ranks.
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

using ::testing::Combine;
using ::testing::HasSubstr;
using ::testing::Values;

std::string PathOf(const std::string& program) {
  return absl::StrCat("examples/", program, "/", program);
}

class PlainTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(PlainTest, EveryRankFindsTheLine) {
  const auto& [program, ranks] = GetParam();
  auto run = StartStandalone({"--nproc-per-node", absl::StrCat(ranks), "--", PathOf(program)});
  ASSERT_EQ(run->Wait(absl::Minutes(1)), 0) << OutputOf(*run);
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_THAT(run->standard_output(),
                HasSubstr(absl::StrCat("rank ", rank, " of ", ranks, ": y = 3.00 x + 2.00\n")));
  }
}

// Three ranks do not divide the points evenly.
INSTANTIATE_TEST_SUITE_P(Programs, PlainTest,
                         Combine(Values("plain_cpp", "plain_c"), Values(1, 2, 3)));

TEST(PlainProgramsTest, NotStartedByALauncher_SaysSo) {
  for (const std::string program : {"plain_cpp", "plain_c"}) {
    auto run = RunToEnd({{PathOf(program)}, {{"CADRE_AGENT", ""}}, "", false});
    ASSERT_OK(run);
    EXPECT_EQ((*run)->Wait(), 1);
    EXPECT_THAT((*run)->standard_error(),
                HasSubstr(absl::StrCat(program, ": FAILED_PRECONDITION: ")));
    EXPECT_THAT((*run)->standard_error(), HasSubstr("cadre run"));
  }
}

}  // namespace
}  // namespace cadre
