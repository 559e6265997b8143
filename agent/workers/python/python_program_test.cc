#include "agent/workers/python/python_program.h"

#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

std::string Script(std::vector<std::string> argv) {
  const auto program = PythonProgramOf(argv);
  return program.has_value() ? program->script : "none";
}
std::string Module(std::vector<std::string> argv) {
  const auto program = PythonProgramOf(argv);
  return program.has_value() ? program->module : "none";
}

TEST(PythonProgramTest, AScriptIsTheFirstWordThatIsNoOption) {
  EXPECT_EQ(Script({"python3", "train.py", "-m", "x"}), "train.py");
  EXPECT_EQ(Script({"/opt/env/bin/python3.11", "-u", "-OO", "dir/train", "-c"}), "dir/train");
  EXPECT_EQ(Script({"python", "-W", "ignore", "-Xdev", "-uX", "utf8", "t.py"}), "t.py");
  EXPECT_EQ(Script({"python3", "--check-hash-based-pycs", "never", "t.py"}), "t.py");
}

TEST(PythonProgramTest, AModuleIsNamedInTheSameWordOrTheNext) {
  EXPECT_EQ(Module({"python3", "-u", "-m", "pkg.train", "x"}), "pkg.train");
  EXPECT_EQ(Module({"python3", "-Omtrain"}), "train");
  EXPECT_EQ(Script({"python3", "-m", "train"}), "");
}

TEST(PythonProgramTest, EverythingElseIsNone) {
  for (const std::vector<std::string>& argv :
       std::vector<std::vector<std::string>>{{},
                                             {"python3"},
                                             {"python3", "-"},
                                             {"python3", "-m"},
                                             {"python3", "-W"},
                                             {"python3", "-c", "pass"},
                                             {"python3", "-uc", "pass"},
                                             {"python3", "-E", "t.py"},
                                             {"python3", "-uI", "t.py"},
                                             {"python3", "-S", "t.py"},
                                             {"python3", "--version"},
                                             {"pythonic", "t.py"},
                                             {"python3-config", "t.py"},
                                             {"bash", "t.py"},
                                             {"./train.py", "t.py"}}) {
    EXPECT_FALSE(PythonProgramOf(argv).has_value()) << (argv.empty() ? "" : argv.back());
  }
}

}  // namespace
}  // namespace cadre::agent
