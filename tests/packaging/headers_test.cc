// Every public header stands alone with all warnings, and brings nothing along but the standard
// library; all together compile in C++20; those of cadre/torch are compiled where libtorch is.
#include <cstddef>
#include <filesystem>
#include <fstream>
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

// Returns the arguments of a compiler that only checks.
std::vector<std::string> Check(const std::string& standard, const std::string& file) {
  return {"c++",     "-std=" + standard, "-Wall", "-Wextra", "-Wpedantic",
          "-Werror", "-fsyntax-only",    "-H",    "-x",      "c++",
          "-I",      kInclude,           file};
}

TEST(HeadersTest, CompileInCxx20) {
  std::string includes;
  for (const std::string& header : PublicHeaders()) {
    absl::StrAppend(&includes, "#include \"", header.substr(sizeof(kInclude)), "\"\n");
  }
  const std::string file = absl::StrCat(testing::TempDir(), "/all.cc");
  std::ofstream(file) << includes;
  ProcessOptions options;
  options.argv = Check("c++20", file);
  const auto process = RunToEnd(options);
  ASSERT_OK(process);
  EXPECT_EQ((*process)->Wait(), 0) << (*process)->standard_error();
}

TEST(HeadersTest, StandAloneWithTheStandardLibrary) {
  const std::vector<std::string> headers = PublicHeaders();
  ASSERT_GT(headers.size(), size_t{20});
  for (const std::string& header : headers) {
    ProcessOptions options;
    options.argv = Check("c++17", header);
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

}  // namespace
}  // namespace cadre
