// What CMake says about the archive's package: which libtorch it takes, and which it refuses, by
// name. Nothing is compiled but CMake's own check of the compiler.
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/packaging/unpacked_archive.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CMakePackageTest : public testing::Test {
 protected:
  // A libtorch as far as CMake looks at it.
  static std::string MakeTorch(const std::string& version, bool new_abi) {
    namespace fs = std::filesystem;
    const std::string root = MakeTempDir("torch");
    const std::string headers = root + "/include/torch/csrc/api/include/torch";
    fs::create_directories(headers);
    fs::create_directories(root + "/lib");
    fs::create_directories(root + "/share/cmake/Torch");
    std::ofstream(headers + "/torch.h") << "";
    std::ofstream(headers + "/all.h") << "";
    const size_t dot = version.find('.');
    std::ofstream(headers + "/version.h")
        << "#define TORCH_VERSION_MAJOR " << version.substr(0, dot)
        << "\n#define TORCH_VERSION_MINOR " << version.substr(dot + 1)
        << "\n#define TORCH_VERSION_PATCH 0\n";
    for (const char* name : {"libtorch.so", "libtorch_cpu.so"}) {
      std::ofstream(root + "/lib/" + name) << "";
    }
    std::ofstream(root + "/lib/libc10.so") << (new_abi ? "_ZNSt7__cxx1112basic_string" : "_ZNSs");
    return root;
  }

  // Configures a project whose lines after project() are these.
  std::unique_ptr<Process> Configure(const std::string& lines,
                                     const std::map<std::string, std::string>& environment = {}) {
    const std::string folder = MakeTempDir("project");
    std::ofstream(folder + "/CMakeLists.txt")
        << "cmake_minimum_required(VERSION 3.18)\nproject(mine CXX)\n"
        << "list(APPEND CMAKE_PREFIX_PATH \"" << unpacked_ << "\")\n"
        << lines << "\n";
    ProcessOptions options;
    options.argv = {"cmake", "-S", folder, "-B", folder + "/build"};
    options.env = environment;
    auto process = RunToEnd(options);
    EXPECT_OK(process);
    return process.ok() ? *std::move(process) : nullptr;
  }
  static std::string OutputOf(const Process& process) {
    // CMake breaks lines where it likes.
    std::string text = absl::StrCat(process.standard_output(), process.standard_error());
    std::string joined;
    for (const char c : text) {
      const char next = c == '\n' ? ' ' : c;
      if (next != ' ' || joined.empty() || joined.back() != ' ') joined += next;
    }
    return joined;
  }

  const std::string unpacked_ = UnpackedArchive("tools/library/cadre.tar.gz");
};

TEST_F(CMakePackageTest, WithoutTorchThereIsTheRuntime) {
  const auto run = Configure(
      "find_package(cadre 0.4 REQUIRED)\nget_target_property(at cadre::runtime IMPORTED_LOCATION)\n"
      "message(STATUS \"library ${at}\")");
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(OutputOf(*run), HasSubstr(absl::StrCat("library ", unpacked_, "/lib/libcadre.so.0")));
}

TEST_F(CMakePackageTest, ItsPagesAreInTheArchive) {
  for (const char* page : {"python.md", "training_in_cpp.md", "images/dashboard_running.png"}) {
    EXPECT_TRUE(std::filesystem::exists(absl::StrCat(unpacked_, "/docs/", page))) << page;
  }
}

TEST_F(CMakePackageTest, AnotherMinorVersionIsRefused) {
  const auto run = Configure("find_package(cadre 0.3 REQUIRED)");
  EXPECT_NE(run->Wait(), 0);
  EXPECT_THAT(OutputOf(*run), HasSubstr("0.4.0"));
}

TEST_F(CMakePackageTest, TakesTheLibtorchThatTorchDirNames) {
  const std::string torch = MakeTorch("2.9", /*new_abi=*/true);
  const auto run = Configure(absl::StrCat("set(Torch_DIR ", torch, "/share/cmake/Torch)\n",
                                          "find_package(cadre 0.4 REQUIRED COMPONENTS torch)"));
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(OutputOf(*run), HasSubstr(absl::StrCat("libtorch 2.9.0 in ", torch, "/lib")));
}

TEST_F(CMakePackageTest, TakesTheLibtorchOfThePrefixPath) {
  const std::string torch = MakeTorch("2.7", /*new_abi=*/true);
  const auto run = Configure("find_package(cadre 0.4 REQUIRED COMPONENTS torch)",
                             {{"CMAKE_PREFIX_PATH", torch + "/share/cmake"}});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(OutputOf(*run), HasSubstr(absl::StrCat("libtorch 2.7.0 in ", torch, "/lib")));
}

// Its headers and libraries lie apart; find_package(Torch) sets the same variable.
TEST_F(CMakePackageTest, TakesDebiansLibtorchThatTorchDirNames) {
  const auto run = Configure(
      "set(Torch_DIR /usr/lib/x86_64-linux-gnu/cmake/Torch)\n"
      "find_package(cadre 0.4 REQUIRED COMPONENTS torch)");
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(OutputOf(*run), HasSubstr("libtorch 1.13.0 in /usr/lib/x86_64-linux-gnu"));
}

TEST_F(CMakePackageTest, TheOldAbiIsRefusedByName) {
  const std::string torch = MakeTorch("2.5", /*new_abi=*/false);
  const auto run = Configure(absl::StrCat("set(Torch_DIR ", torch, "/share/cmake/Torch)\n",
                                          "find_package(cadre 0.4 REQUIRED COMPONENTS torch)"));
  EXPECT_NE(run->Wait(), 0);
  EXPECT_THAT(OutputOf(*run), HasSubstr("libtorch 2.5.0"));
  EXPECT_THAT(OutputOf(*run), HasSubstr("was built for the old C++ ABI"));
}

TEST_F(CMakePackageTest, AnOldLibtorchIsRefused) {
  const std::string torch = MakeTorch("1.12", /*new_abi=*/true);
  const auto run = Configure(absl::StrCat("set(Torch_DIR ", torch, "/share/cmake/Torch)\n",
                                          "find_package(cadre 0.4 REQUIRED COMPONENTS torch)"));
  EXPECT_NE(run->Wait(), 0);
  EXPECT_THAT(OutputOf(*run), HasSubstr("cannot be used: expected 1.13 or newer"));
}

TEST_F(CMakePackageTest, AWrongTorchDirIsNamed) {
  const auto run =
      Configure("set(Torch_DIR /nowhere)\nfind_package(cadre 0.4 REQUIRED COMPONENTS torch)");
  EXPECT_NE(run->Wait(), 0);
  EXPECT_THAT(OutputOf(*run), HasSubstr("there is no libtorch in Torch_DIR=/nowhere"));
}

// As find_package(Torch) leaves it behind.
TEST_F(CMakePackageTest, TwoLibtorchAreBothNamed) {
  const std::string found = MakeTorch("1.13", true), meant = MakeTorch("2.15", true);
  const auto run = Configure(
      absl::StrCat("set(TORCH_LIBRARY ", found, "/lib/libtorch.so)\nset(Torch_DIR ", meant,
                   "/share/cmake/Torch)\nfind_package(cadre 0.4 REQUIRED COMPONENTS torch)"));
  EXPECT_NE(run->Wait(), 0);
  EXPECT_THAT(OutputOf(*run), HasSubstr(found + "/lib"));
  EXPECT_THAT(OutputOf(*run), HasSubstr("libtorch 2.15.0 in " + meant + "/lib"));
}

TEST_F(CMakePackageTest, AComponentThatIsOptionalMayBeMissing) {
  const auto run = Configure(
      "set(Torch_DIR /nowhere)\nfind_package(cadre 0.4 REQUIRED OPTIONAL_COMPONENTS torch)\n"
      "message(STATUS \"torch: ${cadre_torch_FOUND}\")");
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(OutputOf(*run), HasSubstr("torch: FALSE"));
}

TEST_F(CMakePackageTest, AnUnknownComponentIsNamed) {
  const auto run = Configure("find_package(cadre 0.4 REQUIRED COMPONENTS tensorflow)");
  EXPECT_NE(run->Wait(), 0);
  EXPECT_THAT(OutputOf(*run), HasSubstr("there is no component \"tensorflow\""));
  EXPECT_THAT(OutputOf(*run), Not(HasSubstr("libtorch ")));
}

}  // namespace
}  // namespace cadre
