#include "agent/workers/python/python_program.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

namespace fs = std::filesystem;

class TorchVersionTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(root_.data()), nullptr); }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
    fs::permissions(root_ + path, fs::perms::owner_all);
  }
  void Torch(const std::string& folder, const std::string& version) {
    Write(folder + "/torch/version.py",
          "from typing import Optional\n\n__version__ = '" + version + "'\ndebug = False\n");
  }
  // An interpreter as distributions install it: python3 is a link to one with the full name.
  void Interpreter(const std::string& prefix) {
    Write(prefix + "/bin/python3.11", "");
    fs::create_symlink("python3.11", root_ + prefix + "/bin/python3");
    fs::create_directories(root_ + prefix + "/lib/python3.11");
  }
  void VirtualEnvironment(const std::string& folder, const std::string& prefix,
                          const std::string& settings) {
    fs::create_directories(root_ + folder + "/bin");
    fs::create_symlink(root_ + prefix + "/bin/python3", root_ + folder + "/bin/python3");
    fs::create_symlink("python3", root_ + folder + "/bin/python");
    Write(folder + "/pyvenv.cfg", "home = " + root_ + prefix + "/bin\n" + settings);
  }
  std::string Find(std::vector<std::string> command) {
    const auto found = TorchVersionOf(command, root_,
                                      [this](const std::string& name) { return variables_[name]; });
    if (!found.has_value()) return "none";
    return std::to_string(found->major) + "." + std::to_string(found->minor);
  }

  std::string Versions(std::vector<std::string> command) {
    const auto found = ProgramVersionsOf(
        command, root_, [this](const std::string& name) { return variables_[name]; });
    return found.has_value() ? found->python() + ", " + found->torch() : "none";
  }

  std::string root_ = testing::TempDir() + "/torch_XXXXXX";
  std::map<std::string, std::string> variables_;
};

TEST_F(TorchVersionTest, WhatAProgramRunsUnder) {
  Interpreter("/usr");
  VirtualEnvironment("/env", "/usr", "");
  Write("/copied/bin/python", "");
  Write("/copied/pyvenv.cfg", "version = 3.9.2\n");
  Write("/odd/bin/python", "");
  variables_["PATH"] = root_ + "/usr/bin";
  EXPECT_EQ(Versions({"python3", "train.py"}), "3.11, ");
  Torch("/env/lib/python3.11/site-packages", "2.15.0+cpu");
  EXPECT_EQ(Versions({root_ + "/env/bin/python", "train.py"}), "3.11, 2.15.0+cpu");
  fs::create_directories(root_ + "/copied/lib/python3.9/site-packages/torch-1.9.0.dist-info");
  fs::create_directories(root_ + "/copied/lib/python3.9/site-packages/torch");
  EXPECT_EQ(Versions({root_ + "/copied/bin/python", "train.py"}), "3.9, 1.9.0");
  EXPECT_EQ(Versions({root_ + "/odd/bin/python", "train.py"}), ", ");
  EXPECT_EQ(Versions({"sh", "train.sh"}), "none");
}

TEST_F(TorchVersionTest, OfAPlainInterpreter) {
  Interpreter("/usr");
  variables_["PATH"] = "/none:" + root_ + "/usr/bin";
  EXPECT_EQ(Find({"python3", "train.py"}), "none");
  Torch("/usr/lib/python3/dist-packages", "1.13.1");
  EXPECT_EQ(Find({"python3", "train.py"}), "1.13");
  Torch("/usr/local/lib/python3.11/dist-packages", "2.1.0a0+git1");
  EXPECT_EQ(Find({"python3", "train.py"}), "2.1");
  EXPECT_EQ(Find({root_ + "/usr/bin/python3.11"}), "2.1");
  EXPECT_EQ(Find({"usr/bin/python3"}), "2.1");
  EXPECT_EQ(Find({"python3.12", "train.py"}), "none");
}

TEST_F(TorchVersionTest, OfAVirtualEnvironment) {
  Interpreter("/usr");
  Torch("/usr/lib/python3.11/site-packages", "1.13.1");
  VirtualEnvironment("/venv", "/usr", "include-system-site-packages = false\n");
  variables_["PATH"] = root_ + "/venv/bin:" + root_ + "/usr/bin";
  EXPECT_EQ(Find({"python", "-u", "train.py"}), "none");
  Torch("/venv/lib/python3.11/site-packages", "2.15.0+cu132");
  EXPECT_EQ(Find({"python", "-u", "train.py"}), "2.15");
  EXPECT_EQ(Find({root_ + "/usr/bin/python3", "train.py"}), "1.13");
}

TEST_F(TorchVersionTest, OfAVirtualEnvironmentThatHasTheSystemsToo) {
  Interpreter("/opt");
  Torch("/opt/lib/python3.11/site-packages", "2.4.1");
  VirtualEnvironment("/venv", "/opt", "include-system-site-packages = true\n");
  EXPECT_EQ(Find({root_ + "/venv/bin/python"}), "2.4");
}

TEST_F(TorchVersionTest, UsersFolderAndPythonPath) {
  Interpreter("/usr");
  Torch("/usr/lib/python3.11/site-packages", "1.13.1");
  Torch("/home/.local/lib/python3.11/site-packages", "2.2.0");
  Torch("/mine", "2.3.0");
  const std::string python = root_ + "/usr/bin/python3";
  variables_["HOME"] = root_ + "/home";
  EXPECT_EQ(Find({python, "x.py"}), "2.2");
  EXPECT_EQ(Find({python, "-s", "x.py"}), "1.13");
  variables_["PYTHONPATH"] = "mine";
  EXPECT_EQ(Find({python, "x.py"}), "2.3");
  EXPECT_EQ(Find({python, "-Wignore", "-X", "dev", "-uE", "x.py"}), "2.2");
  EXPECT_EQ(Find({python, "-I", "x.py"}), "1.13");
  EXPECT_EQ(Find({python, "-S", "x.py"}), "2.3");
  EXPECT_EQ(Find({python, "-m", "x", "-I"}), "2.3");
  variables_["PYTHONPATH"] = "";
  variables_["PYTHONNOUSERSITE"] = "1";
  EXPECT_EQ(Find({python, "x.py"}), "1.13");
  variables_["PYTHONHOME"] = "/elsewhere";
  EXPECT_EQ(Find({python, "x.py"}), "none");
}

TEST_F(TorchVersionTest, InAFolderThatAPthFileNames) {
  Interpreter("/usr");
  VirtualEnvironment("/env", "/usr", "");
  const std::string packages = "/env/lib/python3.11/site-packages";
  Torch("/shared", "2.5.1");
  Torch("/later", "2.4.0");
  Write(packages + "/zz.pth", root_ + "/later\n");
  Write(packages + "/shared.pth", "# the cluster's\nimport torch_of_the_cluster; x = 1\n\n" +
                                      root_ + "/absent\n../../../../shared  \r\n");
  EXPECT_EQ(Find({root_ + "/env/bin/python", "x.py"}), "2.5");
  // Its own packages come first.
  Torch(packages, "2.3.0");
  EXPECT_EQ(Find({root_ + "/env/bin/python", "x.py"}), "2.3");
  // .pth files are not read in the directories of PYTHONPATH.
  variables_["PYTHONPATH"] = root_ + "/other";
  Write("/other/a.pth", root_ + "/later\n");
  EXPECT_EQ(Find({root_ + "/env/bin/python", "x.py"}), "2.3");
}

TEST_F(TorchVersionTest, WhetherTheInterpreterRunsTheStartHook) {
  Interpreter("/usr");
  Write("/isolated", "#!" + root_ + "/usr/bin/python3 -I\n");
  Write("/script", "#!" + root_ + "/usr/bin/python3\n");
  const auto runs = [this](const std::vector<std::string>& command) {
    return RunsStartHook(command, root_,
                         [this](const std::string& name) { return variables_[name]; });
  };
  const std::string python = root_ + "/usr/bin/python3";
  EXPECT_TRUE(runs({python, "x.py"}));
  EXPECT_TRUE(runs({python, "-u", "-s", "-c", "pass", "-I"}));
  EXPECT_TRUE(runs({root_ + "/script"}));
  for (const char* option : {"-I", "-E", "-S", "-uI"}) EXPECT_FALSE(runs({python, option, "x.py"}));
  EXPECT_FALSE(runs({root_ + "/isolated"}));
  EXPECT_FALSE(runs({"/bin/sh", "-c", "true"}));
}

TEST_F(TorchVersionTest, OfAScriptThatNamesItsInterpreter) {
  Interpreter("/usr");
  Torch("/usr/lib/python3.11/site-packages", "2.15.0");
  variables_["PATH"] = root_ + "/usr/bin";
  Write("/a", "#!" + root_ + "/usr/bin/python3 -u\nimport torch\n");
  Write("/b", "#!/usr/bin/env python3\n");
  Write("/c", "#!/usr/bin/env -S python3 -I\n");
  Write("/d", "#!/bin/sh\npython3 train.py\n");
  Write("/e",
        "\x7f"
        "ELF");
  Write("/f", "#!");
  EXPECT_EQ(Find({"./a"}), "2.15");
  EXPECT_EQ(Find({"./b"}), "2.15");
  EXPECT_EQ(Find({"./c"}), "2.15");
  for (const char* other : {"./d", "./e", "./f", "./none"}) EXPECT_EQ(Find({other}), "none");
  EXPECT_EQ(Find({}), "none");
}

TEST_F(TorchVersionTest, OfWhatSaysItInItsName) {
  Interpreter("/usr");
  const std::string python = root_ + "/usr/bin/python3";
  Write("/usr/lib/python3.11/site-packages/torch/__init__.py", "");
  EXPECT_EQ(Find({python}), "none");
  fs::create_directories(root_ + "/usr/lib/python3.11/site-packages/torch-2.6.0.dist-info");
  EXPECT_EQ(Find({python}), "2.6");
  Write("/usr/lib/python3.11/site-packages/torch/version.py", "__version__ = unknown\n");
  EXPECT_EQ(Find({python}), "2.6");
}

TEST(ParseTorchVersionTest, Texts) {
  EXPECT_EQ(ParseTorchVersion("2.15.0+cu132"), (TorchVersion{2, 15}));
  EXPECT_EQ(ParseTorchVersion("2.1"), (TorchVersion{2, 1}));
  for (const char* text : {"", "2", "two.one", "2.", ".1", "99999999999.1"}) {
    EXPECT_EQ(ParseTorchVersion(text), std::nullopt) << text;
  }
  EXPECT_TRUE((TorchVersion{1, 13}) < (TorchVersion{2, 1}));
  EXPECT_FALSE((TorchVersion{2, 15}) < (TorchVersion{2, 1}));
}

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
