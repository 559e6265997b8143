// Runs the commands of docs/faults.md; of the longest one only the beginning.
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Expected {
  std::string arguments;
  int status;
  std::string said;
};

TEST(ProgramTest, TheCommandsOfThePage) {
  std::map<std::string, Expected> shown = {
      {"--histories=1000000", {"--histories=1000", 0, "1000 histories"}},
      {"--seed=4711", {"--seed=4711", 0, "seed 4711: every promise held"}},
      {"--mutation=skip_fence", {"--mutation=skip_fence", 1, "again: bazel run"}},
  };
  std::ifstream page("docs/faults.md");
  for (std::string line; std::getline(page, line);) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, "bazel run //tests/simulation -- ")) continue;
    const std::pair<std::string, std::string> command =
        absl::StrSplit(rest, absl::MaxSplits('#', 1));
    const auto found = shown.find(std::string(absl::StripAsciiWhitespace(command.first)));
    ASSERT_NE(found, shown.end()) << line;
    ProcessOptions options;
    options.argv = {"tests/simulation/simulation", found->second.arguments};
    const auto run = RunToEnd(options, absl::Minutes(2));
    ASSERT_OK(run);
    EXPECT_EQ((*run)->Wait(), found->second.status) << line;
    EXPECT_THAT((*run)->standard_output(), HasSubstr(found->second.said)) << line;
    shown.erase(found);
  }
  EXPECT_THAT(shown, IsEmpty()) << "the page does not show it";
}

}  // namespace
}  // namespace cadre
