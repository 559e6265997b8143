#include "launcher/environment/program.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

class ProgramTest : public ::testing::Test {
 protected:
  std::string File(const std::string& name, const std::string& text, mode_t mode = 0644) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    chmod(path.c_str(), mode);
    return path;
  }
  const std::string directory_ = ::testing::TempDir();
};

TEST_F(ProgramTest, WhatTorchrunRuns_IsForPython) {
  EXPECT_TRUE(IsForPython(File("train", "import torch\n")));
  EXPECT_TRUE(IsForPython(File("script", "#!/usr/bin/env python3\nimport torch\n")));
  EXPECT_TRUE(IsForPython(File("app.zip", "PK\x03\x04rest", 0755)));
  std::filesystem::create_directories(directory_ + "/package");
  EXPECT_FALSE(IsForPython(directory_ + "/package"));
  File("package/__main__.py", "");
  EXPECT_TRUE(IsForPython(directory_ + "/package"));
}

TEST_F(ProgramTest, WhatRunsByItself_IsNot) {
  EXPECT_FALSE(IsForPython(File("run", "#!/usr/bin/env python3\n", 0755)));
  EXPECT_FALSE(IsForPython(File("shell", "#!/bin/sh\necho\n")));
  EXPECT_FALSE(IsForPython(File("run.sh", "echo\n")));
  EXPECT_FALSE(IsForPython(File("program", std::string("\x7f"
                                                       "ELF\0\0",
                                                       6))));
  EXPECT_FALSE(IsForPython(File("empty", "")));
  EXPECT_FALSE(IsForPython(directory_ + "/absent"));
}

TEST_F(ProgramTest, WhoCallsMpi) {
  const std::string elf(
      "\x7f"
      "ELF\0\0",
      6);
  EXPECT_TRUE(CallsMpi(File("a", elf + std::string("\0MPI_Init\0", 10))));
  EXPECT_TRUE(CallsMpi(File("b", elf + std::string("\0MPI_Init_thread\0", 17))));
  EXPECT_FALSE(CallsMpi(File("c", elf + std::string("\0MPI_Initialized\0", 17))));
  EXPECT_FALSE(CallsMpi(File("d", std::string("text\0MPI_Init\0", 14))));
  EXPECT_TRUE(CallsMpi(File("e.py", "import os\nfrom mpi4py import MPI\n")));
  EXPECT_TRUE(CallsMpi(File("f.py", "try:\n  import mpi4py.MPI as m\nexcept: pass\n")));
  EXPECT_FALSE(CallsMpi(File("g.py", "# import mpi4py\nimport mpi4pyx\n")));
}

using Environment = std::map<std::string, std::string>;

class PythonTest : public testing::Test {
 protected:
  void Make(const char* file) {
    std::filesystem::create_directories((folder_ / file).parent_path());
    std::ofstream((folder_ / file).string()) << "";
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) /
      testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::filesystem::path program_ = folder_ / "bin" / "cadre";
};

TEST_F(PythonTest, ThatOfTheEnvironmentWhereTheCommandIs) {
  Make("bin/python3");
  Make("pyvenv.cfg");
  EXPECT_EQ(PythonFor({}, program_), (folder_ / "bin" / "python3").string());
}

TEST_F(PythonTest, ThatOfAnActiveEnvironmentComesFromPath) {
  Make("bin/python3");
  Make("pyvenv.cfg");
  EXPECT_EQ(PythonFor({{"VIRTUAL_ENV", "/other"}}, program_), "") << "it has no interpreter";
  EXPECT_EQ(PythonFor({{"VIRTUAL_ENV", folder_}}, "/usr/bin/cadre"),
            (folder_ / "bin" / "python3").string());
  EXPECT_EQ(PythonFor({{"CONDA_PREFIX", "/other"}}, program_), "");
}

TEST_F(PythonTest, AnyOtherFolderIsNoEnvironment) {
  Make("bin/python3");
  EXPECT_EQ(PythonFor({}, program_), "");
}

TEST_F(PythonTest, ThatWhichTheUserNames) {
  Make("bin/python3");
  Make("pyvenv.cfg");
  EXPECT_EQ(PythonFor({{"PYTHON_EXEC", "python3.9"}}, program_), "python3.9");
}

}  // namespace
}  // namespace cadre::launcher
