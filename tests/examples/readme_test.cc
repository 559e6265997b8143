// The programs that pages quote are those that are compiled and run.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

TEST(ReadmeTest, QuotesThePlainProgram) {
  const std::string readme = ReadFileOrEmpty("README.md");
  const std::string program = ReadFileOrEmpty("examples/plain_cpp/main.cc");
  ASSERT_FALSE(readme.empty());
  ASSERT_THAT(program, HasSubstr("int main()"));
  if (!absl::StrContains(readme, "examples/plain_cpp")) {
    GTEST_SKIP() << "README.md does not speak of examples/plain_cpp";
  }
  EXPECT_THAT(readme, HasSubstr(absl::StrCat("```cpp\n", program, "```\n")));
}

TEST(ReadmeTest, ThePageForCQuotesItsProgram) {
  const std::string page = ReadFileOrEmpty("docs/c_api.md");
  const std::string program = ReadFileOrEmpty("examples/plain_c/main.c");
  ASSERT_THAT(program, HasSubstr("int main(void)"));
  EXPECT_THAT(page, HasSubstr(absl::StrCat("```c\n", program, "```\n")));
}

}  // namespace
}  // namespace cadre
