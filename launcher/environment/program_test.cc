#include "launcher/environment/program.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

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

}  // namespace
}  // namespace cadre::launcher
