// What interpreters are told to read first, and who gets it.
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/warm/warm_rig.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using HookTest = WarmTest;

// Whatever it does to PYTHONPATH; what the interpreter starts has no hook.
TEST_F(HookTest, WhatAShellStartsAnswersWithItsStacksToo) {
  WriteScript(
      "import os\nmask = [line for line in open('/proc/self/status') if 'SigCgt' in line][0]\n"
      "print('answers' if int(mask.split()[1], 16) >> 60 & 1 else 'does not',\n"
      "      os.environ.get('PYTHONPATH'), 'CADRE_WARM_START' in os.environ, flush=True)\n");
  StartFrame worker = Worker();
  worker.argv = {"/bin/sh", "-c",
                 "$0 train.py; PYTHONPATH=/x:$PYTHONPATH $0 train.py; PYTHONPATH= $0 train.py",
                 kPython};
  worker.environment = {"PATH=/usr/bin:/bin",
                        absl::StrCat("CADRE_STACK_FILE=", rig_.folder(), "/stacks")};
  worker.warm.script.clear();
  EXPECT_EQ(rig_.Run(worker).exit_code, 0);
  EXPECT_EQ(OutputOf(worker.group), "answers None False\nanswers /x False\ndoes not  True\n");
  EXPECT_FALSE(rig_.Started(worker.group)->warm);
  EXPECT_EQ(rig_.Started(worker.group)->why_plain, "");
}

TEST_F(HookTest, AProgramThatEndsItselfSaysWhere) {
  WriteScript(
      "import os, sys\ndef done(status):\n    sys.exit(status)\n"
      "if os.fork() == 0: done(3)\nos.wait()\n"
      "for status in ('caught', None, 0, 4):\n"
      "    try: done(status)\n    except SystemExit as end: print(end.code)\n"
      "print(sys.exit.__module__, sys.exit.__name__, flush=True)\ndone(3)\n");
  StartFrame worker = Worker();
  worker.environment = {"PATH=/usr/bin:/bin",
                        absl::StrCat("CADRE_STACK_FILE=", rig_.folder(), "/stacks")};
  const ExitedFrame exited = rig_.Run(worker);
  EXPECT_EQ(exited.exit_code, 3);
  EXPECT_EQ(OutputOf(worker.group), "caught\nNone\n0\n4\nsys exit\n");
  const std::string noted = ReadFile(rig_.folder() + "/stacks");
  EXPECT_EQ(noted.find("sys.exit(0)"), std::string::npos);
  const size_t last = noted.rfind(absl::StrCat("sys.exit(3) in process ", exited.pid, "\n"));
  ASSERT_NE(last, std::string::npos) << noted;
  EXPECT_NE(noted.find("train.py\", line 3 in done\n", last), std::string::npos) << noted;
}

TEST_F(HookTest, AHookThatWasRemovedIsWrittenAgain) {
  WriteScript("");
  rig_.Run(Worker());
  std::filesystem::remove_all(rig_.folder() + "/warm/python");
  rig_.Run(Worker());
  EXPECT_TRUE(std::filesystem::exists(rig_.folder() + "/warm/python/sitecustomize.py"));
}

}  // namespace
}  // namespace cadre::supervisor
