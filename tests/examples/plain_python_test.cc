// The program in Python trains, with the library wherever it looks for it.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kProgram[] = "examples/plain_python/fit.py";
constexpr char kLibrary[] = "tools/library/libcadre.so.0";

void ExpectTrains(const std::string& program, std::map<std::string, std::string> env) {
  auto run = StartCadre({"run", "--standalone", "--nproc-per-node", "2", program}, std::move(env));
  ASSERT_EQ(run->Wait(absl::Minutes(1)), 0) << OutputOf(*run);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(run->standard_output(),
                HasSubstr(absl::StrCat("rank ", rank, " of 2: y = 3.00 x + 2.00\n")));
  }
}

TEST(PlainPythonTest, TheLibraryThatTheEnvironmentNames) {
  ExpectTrains(kProgram, {{"CADRE_LIBRARY", fs::absolute(kLibrary)}});
}

// As in an unpacked archive.
TEST(PlainPythonTest, TheLibraryBesideIt) {
  const fs::path archive = MakeTempDir("archive");
  fs::create_directories(archive / "examples/plain_python");
  fs::create_directories(archive / "lib");
  fs::copy_file(kProgram, archive / kProgram);
  fs::create_symlink(fs::absolute(kLibrary), archive / "lib/libcadre.so.0");
  ExpectTrains(archive / kProgram, {{"CADRE_LIBRARY", ""}});
}

TEST(PlainPythonTest, NoLibrary_SaysInOneLineWhereItLooked) {
  auto run = RunToEnd({{"python3", kProgram}, {{"CADRE_LIBRARY", "/no/lib.so"}}, "", false});
  ASSERT_OK(run);
  EXPECT_EQ((*run)->Wait(), 1);
  const std::string& said = (*run)->standard_error();
  EXPECT_THAT(said, AllOf(HasSubstr("/no/lib.so"), HasSubstr("CADRE_LIBRARY")));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST(PlainPythonTest, NotStartedByCadre_SaysSo) {
  auto run = RunToEnd({{"python3", kProgram},
                       {{"CADRE_LIBRARY", fs::absolute(kLibrary)}, {"CADRE_AGENT", ""}},
                       "",
                       false});
  ASSERT_OK(run);
  EXPECT_EQ((*run)->Wait(), 1);
  EXPECT_THAT((*run)->standard_error(),
              HasSubstr("fit.py: cadre_worker_connect: FAILED_PRECONDITION: "));
}

}  // namespace
}  // namespace cadre
