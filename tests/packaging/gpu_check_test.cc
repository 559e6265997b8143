// What tools/gpu_check says on a machine without a GPU: of each part that cannot run why. The
// interpreter is a script that says what it has, so that nothing is compiled.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/packaging/unpacked_archive.h"
#include "tests/testing/process.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kArchive[] = "tools/gpu/gpu_check.tar.gz";
constexpr char kNoDriver[] = R"json({"error": "there is no NVIDIA driver (no libcuda.so.1)"})json";
constexpr char kOldDriver[] =
    R"({"version": "470.1", "cuda": "11.4", "gpus": [{"name": "NVIDIA T4", "bytes": 16000000000}]})";
constexpr char kNoTorch[] = R"({"error": "No module named 'torch'"})";

std::string Torch(const std::string& gpu_error, bool new_abi = true) {
  return absl::StrCat(R"({"version": "2.15.0", "folder": "/nowhere/torch", "cuda": "13.2", )",
                      R"("gpus": 0, "nccl": "2.30.7", "gpu_error": ")", gpu_error,
                      R"(", "new_abi": )", new_abi ? "true" : "false", "}");
}

class GpuCheckTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { unpacked_ = new std::string(UnpackedArchive(kArchive)); }
  static void TearDownTestSuite() {
    delete unpacked_;
    unpacked_ = nullptr;
  }

  // An interpreter that says that it found this.
  std::string Python(const std::string& driver, const std::string& torch) {
    const std::string path = MakeTempDir("python") + "/python";
    std::ofstream(path) << "#!/bin/sh\n/bin/cat <<'end'\n{\"python\": \"3.11.2\", \"driver\": "
                        << driver << ", \"torch\": " << torch << "}\nend\n";
    fs::permissions(path, fs::perms::owner_all);
    return path;
  }

  std::unique_ptr<Process> Check(const std::vector<std::string>& flags,
                                 const std::map<std::string, std::string>& environment = {}) {
    ProcessOptions options;
    options.argv = {"/usr/bin/python3", *unpacked_ + "/gpu_check", "--output", output_};
    options.argv.insert(options.argv.end(), flags.begin(), flags.end());
    options.env = environment;
    auto process = RunToEnd(options, absl::Minutes(2));
    EXPECT_TRUE(process.ok()) << process.status();
    return *std::move(process);
  }
  nlohmann::json Results() {
    std::ifstream file(output_ + "/gpu_check.json");
    return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  }
  // What it says of that part.
  std::string Of(const std::string& part) {
    const nlohmann::json results = Results();
    for (const auto& row : results["parts"]) {
      if (row["name"] == part)
        return absl::StrCat(std::string(row["result"]), ": ", std::string(row["reason"]));
    }
    return "there is no such part";
  }
  static std::string LastLine(const std::string& text) {
    const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
    return lines.empty() ? "" : lines.back();
  }

  static std::string* unpacked_;
  const std::string output_ = MakeTempDir("output");
};

std::string* GpuCheckTest::unpacked_ = nullptr;

TEST_F(GpuCheckTest, TheArchiveHasAtMost40MiB) { EXPECT_LE(fs::file_size(kArchive), 40u << 20); }

// RHEL 9, Ubuntu 22.04: glibc 2.34 and the libstdc++ of GCC 11.
TEST_F(GpuCheckTest, ItsProgramsNeedTheCAndCxxLibrariesAndNoNewOnes) {
  ProcessOptions options;
  options.argv = {
      "/bin/bash", "-euc",
      "for file in tests/*; do\n"
      "  echo \"$file needs $(readelf -d $file | grep -o 'Shared library: .*' |"
      " grep -v -E 'lib(c|m|dl|rt|pthread|stdc..|gcc_s)\\.so|ld-linux' | xargs)\"\n"
      "  for newest in GLIBC_2.34 GLIBCXX_3.4.29; do\n"
      "    used=$(objdump -T $file | grep -o \"${newest%%_*}_[0-9.]*\" | sort -V | tail -1)\n"
      "    [[ $(printf '%s\\n' $used $newest | sort -V | tail -1) == $newest ]] ||"
      " echo \"too new: $file $used\"\n"
      "  done\n"
      "done"};
  options.working_dir = *unpacked_;
  const auto process = RunToEnd(options);
  ASSERT_TRUE(process.ok());
  EXPECT_EQ((*process)->Wait(), 0) << OutputOf(**process);
  EXPECT_THAT((*process)->standard_output(), HasSubstr("tests/nccl_communicator_check needs \n"));
  EXPECT_THAT((*process)->standard_output(), Not(HasSubstr("too new")));
}

TEST_F(GpuCheckTest, WithoutGpuAndTorch_RunsToItsEndAndSaysWhatIsMissing) {
  const auto run = Check({"--python", Python(kNoDriver, kNoTorch)});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_EQ(LastLine(run->standard_output()), "1 passed, 0 failed") << OutputOf(*run);
  const nlohmann::json results = Results();
  ASSERT_FALSE(results.is_discarded());
  EXPECT_EQ(results["schema"], 1);
  EXPECT_EQ(results["passed"], 1);
  EXPECT_EQ(results["skipped"], results["parts"].size() - 1);
  for (const auto& part : results["parts"]) {
    const std::string reason = part["reason"];
    if (part["result"] == "passed") continue;
    EXPECT_THAT(reason,
                AnyOf(HasSubstr("no GPU: there is no NVIDIA driver"), HasSubstr("no PyTorch: ")));
    EXPECT_THAT(run->standard_output(), HasSubstr(reason));
  }
  EXPECT_THAT(Of("cadre doctor"), "passed: ");
  EXPECT_THAT(Of("adapter for this libtorch"),
              AllOf(HasSubstr("No module named 'torch'"), HasSubstr("--python")));
}

TEST_F(GpuCheckTest, AnOldDriver_IsNamedWithItsVersion) {
  const auto run =
      Check({"--python", Python(kOldDriver, Torch("the NVIDIA driver on your system is too old")),
             "--only", "nccl"});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(Of("PyTorch DDP with nccl, one rank per GPU"),
              AllOf(HasSubstr("skipped: "), HasSubstr("driver on your system is too old"),
                    HasSubstr("the driver is 470.1, for CUDA 11.4")));
  EXPECT_EQ(LastLine(run->standard_output()), "0 passed, 0 failed");
}

TEST_F(GpuCheckTest, ATorchThatCannotBeCompiledAgainst_IsNamed) {
  const auto run =
      Check({"--python", Python(kNoDriver, Torch("", /*new_abi=*/false)), "--only", "adapter"});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(Of("adapter for this libtorch"), HasSubstr("old C++ ABI; expected PyTorch 2.7"));
  const auto other = Check({"--python", Python(kNoDriver, Torch("")), "--only", "adapter"});
  EXPECT_EQ(other->Wait(), 0) << OutputOf(*other);
  EXPECT_THAT(Of("adapter for this libtorch"),
              HasSubstr("no headers of PyTorch in /nowhere/torch"));
}

TEST_F(GpuCheckTest, WithoutACompiler_SaysSo) {
  const auto run = Check({"--python", Python(kNoDriver, Torch("")), "--only", "adapter"},
                         {{"PATH", MakeTempDir("path")}, {"CXX", ""}});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(Of("adapter for this libtorch"), HasSubstr("no C++ compiler"));
}

TEST_F(GpuCheckTest, WhatDoesNotFitIntoTheTime_IsSkipped) {
  const auto run = Check({"--python", Python(kNoDriver, kNoTorch), "--minutes", "0.1"});
  EXPECT_EQ(run->Wait(), 0) << OutputOf(*run);
  EXPECT_THAT(Of("cadre doctor"), HasSubstr("of 0.1 minutes are left, and it takes about 2 s"));
  EXPECT_EQ(LastLine(run->standard_output()), "0 passed, 0 failed");
}

// The program is a script in its place, on a machine that seems to have a GPU.
TEST_F(GpuCheckTest, WhatAProgramOfTestsSays_IsThePartsResult) {
  const struct {
    std::string script;
    int status;
    std::string result, last_line;
  } kCases[] = {
      {"echo 'file.cc:7: Failure'; exit 1", 1,
       "failed: nccl_communicator_check: file.cc:7: Failure", "0 passed, 1 failed"},
      {"echo 'file.cc:7: Skipped'; echo 'no NCCL here'", 0, "skipped: no NCCL here",
       "0 passed, 0 failed"},
      {"echo '[       OK ] Test.Case (1 ms)'", 0, "passed: ", "1 passed, 0 failed"},
  };
  const std::string changed = MakeTempDir("changed");
  fs::copy(*unpacked_, changed, fs::copy_options::recursive);
  for (const auto& one : kCases) {
    std::ofstream(changed + "/tests/nccl_communicator_check", std::ios::trunc)
        << "#!/bin/sh\n"
        << one.script << "\n";
    ProcessOptions options;
    options.argv = {"/usr/bin/python3", changed + "/gpu_check",       "--output", output_,
                    "--python",         Python(kOldDriver, kNoTorch), "--only",   "communicator"};
    const auto run = RunToEnd(options, absl::Minutes(1));
    ASSERT_TRUE(run.ok());
    EXPECT_EQ((*run)->Wait(), one.status) << OutputOf(**run);
    EXPECT_EQ(Of("communicator on the GPU"), one.result);
    EXPECT_EQ(LastLine((*run)->standard_output()), one.last_line);
  }
}

TEST_F(GpuCheckTest, BadFlags_GetOneLineEach) {
  const struct {
    std::vector<std::string> flags;
    std::string says;
  } kCases[] = {
      {{"--python", "/nowhere/python"}, "/nowhere/python does not start: No such file"},
      {{"--python", "/bin/true"}, "/bin/true does not print what probe.py prints"},
      {{"--only", "teapot"}, "no part has \"teapot\" in its name: see --list"},
      {{"--minutes", "-1"}, "--minutes: invalid minutes value: '-1'"},
      {{"--output", "/proc/nowhere"}, "cannot begin: "},
      {{"--only", "doctor", "--json", "/nowhere/a.json", "--python", Python(kNoDriver, kNoTorch)},
       "cannot write /nowhere/a.json: No such file or directory"},
  };
  for (const auto& one : kCases) {
    const auto run = Check(one.flags);
    EXPECT_NE(run->Wait(), 0) << OutputOf(*run);
    EXPECT_THAT(LastLine(run->standard_error()), HasSubstr(one.says));
  }
}

TEST_F(GpuCheckTest, InACheckout_AWrongArchiveIsNamed) {
  const std::string empty = MakeTempDir("empty") + "/empty.tar.gz";
  std::ofstream(empty) << "no archive";
  for (const std::string& archive : {empty, std::string("/nowhere/a.tar.gz")}) {
    ProcessOptions options;
    options.argv = {"tools/gpu_check", "--archive", archive};
    const auto run = RunToEnd(options);
    ASSERT_TRUE(run.ok());
    EXPECT_EQ((*run)->Wait(), 69);
    EXPECT_THAT((*run)->standard_error(),
                AllOf(HasSubstr(archive), HasSubstr("expected what tools/package --gpu-check made"),
                      EndsWith("\n")));
  }
}

// It has started programs in sessions of their own.
TEST_F(GpuCheckTest, InACheckout_WhatEndsItLetsTheCheckEndInOrder) {
  const std::string folder = MakeTempDir("archive");
  fs::create_directory(folder + "/check");
  // Not by print(): the signal may come while the other line is still being printed.
  std::ofstream(folder + "/check/gpu_check") << "import os, signal, sys, time\n"
                                                "def end(*_):\n"
                                                "    os.write(1, b'ends in order\\n')\n"
                                                "    sys.exit(130)\n"
                                                "signal.signal(signal.SIGTERM, end)\n"
                                                "print('checks', flush=True)\n"
                                                "time.sleep(60)\n";
  ProcessOptions options;
  options.argv = {
      "tar",  "--create", "--gzip", "--file=" + folder + "/archive.tar.gz", "--directory=" + folder,
      "check"};
  const auto packed = RunToEnd(options);
  ASSERT_TRUE(packed.ok());
  ASSERT_EQ((*packed)->Wait(), 0) << OutputOf(**packed);
  options.argv = {"tools/gpu_check", "--archive", folder + "/archive.tar.gz"};
  const auto run = Process::Start(options);
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_TRUE((*run)->WaitForLine("checks")) << OutputOf(**run);
  (*run)->Kill(SIGTERM);
  EXPECT_EQ((*run)->Wait(), 130) << OutputOf(**run);
  EXPECT_THAT((*run)->standard_output(), HasSubstr("ends in order"));
}

TEST_F(GpuCheckTest, InACheckout_TakesAnArchiveThatWasMade) {
  ProcessOptions options;
  options.argv = {"tools/gpu_check", "--archive", kArchive, "--list"};
  const auto run = RunToEnd(options, absl::Minutes(1));
  ASSERT_TRUE(run.ok());
  EXPECT_EQ((*run)->Wait(), 0) << OutputOf(**run);
  EXPECT_THAT((*run)->standard_output(), HasSubstr("communicator on the GPU\n"));
}

}  // namespace
}  // namespace cadre
