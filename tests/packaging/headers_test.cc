// Every public header stands alone, in C++17 and C++20 with all warnings, and brings nothing along
// but the standard library; those of cadre/torch are compiled where libtorch is.
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

constexpr char kInclude[] = "worker_runtime/include";

std::vector<std::string> PublicHeaders() {
  std::vector<std::string> headers;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kInclude)) {
    const std::string path = entry.path();
    if (absl::EndsWith(path, ".h") && !absl::StrContains(path, "/cadre/torch/")) {
      headers.push_back(path);
    }
  }
  return headers;
}

class HeadersTest : public testing::TestWithParam<std::string> {};

TEST_P(HeadersTest, StandAloneWithTheStandardLibrary) {
  const std::vector<std::string> headers = PublicHeaders();
  ASSERT_GT(headers.size(), size_t{20});
  for (const std::string& header : headers) {
    ProcessOptions options;
    options.argv = {"c++",
                    absl::StrCat("-std=", GetParam()),
                    "-Wall",
                    "-Wextra",
                    "-Wpedantic",
                    "-Werror",
                    "-fsyntax-only",
                    "-H",
                    absl::StrCat("-I", kInclude),
                    "-x",
                    "c++",
                    header};
    const auto process = RunToEnd(options);
    ASSERT_OK(process);
    EXPECT_EQ((*process)->Wait(), 0) << header << ": " << (*process)->standard_error();
    // "... /usr/include/c++/12/vector": what it includes, and through what.
    for (const absl::string_view line : absl::StrSplit((*process)->standard_error(), '\n')) {
      if (!absl::StartsWith(line, ".")) continue;
      const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
      EXPECT_TRUE(absl::StrContains(words[1], "/c++/") || absl::StrContains(words[1], "/gcc/") ||
                  absl::StrContains(words[1], "x86_64-linux-gnu") ||
                  absl::StartsWith(words[1], kInclude) ||
                  // glibc's own.
                  std::filesystem::path(std::string(words[1])).parent_path() == "/usr/include" ||
                  absl::StartsWith(words[1], "/usr/include/asm") ||
                  absl::StartsWith(words[1], "/usr/include/linux"))
          << header << " includes " << words[1];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Standards, HeadersTest, testing::Values("c++17", "c++20"),
                         [](const auto& info) { return info.param.substr(3); });

}  // namespace
}  // namespace cadre
