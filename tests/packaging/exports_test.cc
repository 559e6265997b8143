// What libcadre.so.0 gives to programs is exactly the list that lies beside it, and nothing in it
// or in the libraries that come along with it has the name of something in a libtorch. After a
// change of the headers: bazel run //tests/packaging:exports_test -- --rewrite
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kLibrary[] = "tools/library/libcadre.so.0";
constexpr char kList[] = "tools/library/exports.txt";
bool rewrite = false;

std::vector<std::string> Lines(const std::vector<std::string>& argv) {
  ProcessOptions options;
  options.argv = argv;
  const auto process = RunToEnd(options);
  EXPECT_OK(process);
  if (!process.ok()) return {};
  EXPECT_EQ((*process)->Wait(), 0) << (*process)->standard_error();
  return absl::StrSplit((*process)->standard_output(), '\n', absl::SkipEmpty());
}

// What LIBRARY defines for others, by nm: its version's own name left out.
std::set<std::string> Exported(const std::string& library, bool demangled) {
  std::vector<std::string> argv = {"nm", "--dynamic", "--defined-only", library};
  if (demangled) argv.insert(argv.begin() + 1, "--demangle");
  std::set<std::string> names;
  for (const std::string& line : Lines(argv)) {
    // "0000000000001234 T name@@CADRE_0"; the version's own name is absolute.
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 2));
    if (words.size() != 3 || words[1] == "A") continue;
    const std::vector<std::string> parts = absl::StrSplit(words[2], "@@");
    names.insert(parts[0]);
  }
  return names;
}

TEST(ExportsTest, AreThoseOfTheList) {
  const std::set<std::string> exported = Exported(kLibrary, /*demangled=*/true);
  if (rewrite) {
    const std::string path = absl::StrCat(std::getenv("BUILD_WORKSPACE_DIRECTORY"), "/", kList);
    std::ofstream(path) << absl::StrJoin(exported, "\n") << "\n";
    return;
  }
  std::set<std::string> listed;
  for (const absl::string_view line :
       absl::StrSplit(ReadFileOrEmpty(kList), '\n', absl::SkipEmpty())) {
    listed.emplace(line);
  }
  std::vector<std::string> more, fewer;
  std::set_difference(exported.begin(), exported.end(), listed.begin(), listed.end(),
                      std::back_inserter(more));
  std::set_difference(listed.begin(), listed.end(), exported.begin(), exported.end(),
                      std::back_inserter(fewer));
  EXPECT_THAT(more, IsEmpty()) << "exported, and not in " << kList;
  EXPECT_THAT(fewer, IsEmpty()) << "in " << kList << ", and not exported";
}

TEST(ExportsTest, CarryTheVersion) {
  for (const std::string& line : Lines({"nm", "--dynamic", "--defined-only", kLibrary})) {
    EXPECT_TRUE(absl::EndsWith(line, "@@CADRE_0") || absl::EndsWith(line, " A CADRE_0")) << line;
  }
}

// Debian's libtorch 1.13, and that of PyPI's where there is an environment with one.
TEST(ExportsTest, NoneIsOneOfLibtorch) {
  std::vector<std::string> theirs = {"/usr/lib/x86_64-linux-gnu/libtorch_cpu.so",
                                     "/usr/lib/x86_64-linux-gnu/libc10.so"};
  const char* const environment = std::getenv("CADRE_PYTHON_ENV");
  if (environment != nullptr && *environment != '\0') {
    const std::string folder = absl::StrCat(environment, "/lib/python3.11/site-packages/torch/lib");
    for (const char* name :
         {"libtorch_cpu.so", "libc10.so", "libtorch_cuda.so", "libc10_cuda.so"}) {
      theirs.push_back(absl::StrCat(folder, "/", name));
    }
  }
  // The machine's own, which the archive brings along under other names.
  std::vector<std::string> ours = {kLibrary};
  for (const std::string& line : Lines({"ldd", kLibrary})) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(absl::StripLeadingAsciiWhitespace(line), ' ');
    if (words.size() < 3 || words[1] != "=>") continue;
    if (absl::StartsWith(words[0], "libabsl") || absl::StartsWith(words[0], "libcrypto")) {
      ours.emplace_back(words[2]);
    }
  }
  ASSERT_THAT(ours, SizeIs(testing::Gt(2)));
  for (const std::string& their : theirs) {
    const std::set<std::string> taken = Exported(their, /*demangled=*/false);
    ASSERT_THAT(taken, SizeIs(testing::Gt(100))) << their;
    for (const std::string& own : ours) {
      std::vector<std::string> both;
      for (const std::string& name : Exported(own, /*demangled=*/false)) {
        // Instances of the standard library's templates are the same wherever they are made.
        if (absl::StartsWith(name, "_ZNSt") || absl::StartsWith(name, "_ZNKSt") ||
            absl::StartsWith(name, "_ZSt") || absl::StartsWith(name, "_ZTISt") ||
            absl::StartsWith(name, "_ZTSSt") || absl::StartsWith(name, "_ZTVSt")) {
          continue;
        }
        if (taken.count(name) != 0) both.push_back(name);
      }
      EXPECT_THAT(both, IsEmpty()) << own << " and " << their;
    }
  }
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  cadre::rewrite = argc > 1 && absl::string_view(argv[1]) == "--rewrite";
  return RUN_ALL_TESTS();
}
