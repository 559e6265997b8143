// Every example of docs/python.md, as a reader would run it: by itself, and by two workers.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/launch.h"
#include "tests/testing/pypi_python.h"
#include "tests/testing/unpacked_wheel.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Minutes(1);
constexpr char kPython[] = "/usr/bin/python3";

std::vector<std::string> Examples() {
  std::stringstream page;
  page << std::ifstream("docs/python.md").rdbuf();
  std::vector<std::string> examples;
  bool inside = false;
  for (const absl::string_view line : absl::StrSplit(page.str(), '\n')) {
    if (line == "```python") {
      examples.emplace_back();
      inside = true;
    } else if (line == "```") {
      inside = false;
    } else if (inside) {
      absl::StrAppend(&examples.back(), line, "\n");
    }
  }
  return examples;
}

class PythonPageTest : public testing::Test {
 protected:
  // The example with that text in it, in a file.
  std::string Example(const std::string& text) {
    for (const std::string& example : Examples()) {
      if (!absl::StrContains(example, text)) continue;
      const std::string path = directory_ + "/example.py";
      std::ofstream(path) << example;
      return path;
    }
    ADD_FAILURE() << "the page has no example with " << text;
    return "";
  }
  // With PyTorch of PyPI and the wheel, as a reader has it.
  std::string ByTwoWorkersWithTheWheel(const std::string& python, const std::string& script) {
    return ByTwoWorkers(script, python, {{"PYTHONPATH", UnpackedWheel()}});
  }
  std::string Alone(const std::string& script) {
    ProcessOptions options;
    options.argv = {kPython, script};
    options.env = environment_;
    const auto process = RunToEnd(options, kTimeout);
    EXPECT_OK(process);
    EXPECT_EQ((*process)->Wait(), 0) << OutputOf(**process);
    return (*process)->standard_output();
  }
  std::string ByTwoWorkers(const std::string& script) {
    return ByTwoWorkers(script, kPython, environment_);
  }
  std::string ByTwoWorkers(const std::string& script, const std::string& python,
                           const std::map<std::string, std::string>& environment) {
    std::vector<std::string> flags = {"--nproc-per-node", "2", "--log-dir", directory_ + "/logs"};
    for (const auto& [name, value] : environment) {
      flags.insert(flags.end(), {"--env", absl::StrCat(name, "=", value)});
    }
    flags.insert(flags.end(), {"--", python, script});
    const auto run = StartStandalone(flags);
    EXPECT_EQ(run->Wait(kTimeout), 0) << OutputOf(*run);
    return run->standard_output();
  }
  void RunsEverywhere(const std::string& text) {
    const std::string script = Example(text);
    Alone(script);
    ByTwoWorkers(script);
  }

  const std::string directory_ = MakeTempDir("page");
  const std::map<std::string, std::string> environment_ = {
      {"PYTHONPATH", std::filesystem::canonical("python")},
      {"CADRE_LIBRARY", std::filesystem::canonical("tools/library/libcadre.so.0")}};
};

TEST_F(PythonPageTest, EachIsRunHere) { EXPECT_EQ(Examples().size(), 7); }

TEST_F(PythonPageTest, Progress) { RunsEverywhere("cadre.progress("); }

TEST_F(PythonPageTest, Steps) { RunsEverywhere("start=100"); }

TEST_F(PythonPageTest, Worker) {
  const std::string script = Example("w.barrier(");
  EXPECT_THAT(Alone(script), HasSubstr("rank 0 of 1, generation 0, restart 0: tcp://10.0.0.1"));
  EXPECT_THAT(ByTwoWorkers(script),
              AllOf(HasSubstr("rank 0 of 2, generation 1, restart 0: tcp://10.0.0.1"),
                    HasSubstr("rank 1 of 2, generation 1, restart 0: tcp://10.0.0.1")));
}

TEST_F(PythonPageTest, Store) { RunsEverywhere("compare_and_set"); }

TEST_F(PythonPageTest, CheckpointInMemory) { RunsEverywhere("checkpoint.latest"); }

TEST_F(PythonPageTest, Collectives) {
  const std::string python = PypiProgram("python");
  if (python.empty()) GTEST_SKIP() << kNoPypiPython;
  EXPECT_THAT(ByTwoWorkersWithTheWheel(python, Example("init_process_group(\"cadre\")")),
              HasSubstr("the sum of 2 ranks is 3\n"));
}

TEST_F(PythonPageTest, CheckpointWanted) { RunsEverywhere("checkpoint.wanted"); }

}  // namespace
}  // namespace cadre
