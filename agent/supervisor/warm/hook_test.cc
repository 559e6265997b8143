// What interpreters must read first, and which processes get it.
#include <sys/stat.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/warm/warm_rig.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using HookTest = WarmTest;

// Whatever the script does to PYTHONPATH. What the interpreter itself starts has no hook.
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

// Fault (python): A Python program ends itself with `sys.exit(3)` -> The first line of the verdict
// names the line of code
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

// An empty PYTHONPATH is the same as none: the working directory is not searched.
//
// Fault (python): `PYTHONPATH` is set to an empty value, and a file in the working directory has a
// package's name -> That file is not imported in the package's place
TEST_F(HookTest, AnEmptyPathStaysEmpty) {
  mkdir((rig_.folder() + "/program").c_str(), 0755);
  WriteFile(rig_.folder() + "/program/train.py",
            "import colorsys, os\nprint(colorsys.__file__.startswith(os.path.dirname(os.__file__)),"
            " repr(os.environ.get('PYTHONPATH')))\n");
  WriteFile(rig_.folder() + "/colorsys.py", "");
  StartFrame worker = Worker();
  worker.argv[1] = worker.warm.script = "program/train.py";
  worker.environment[1] = "PYTHONPATH=";
  EXPECT_EQ(rig_.Run(worker).exit_code, 0);
  EXPECT_EQ(OutputOf(worker.group), "True ''\n");
}

// A stand-in for the parts of PyTorch that matter here, and a program that prints the store it
// would use.
class StoreHookTest : public WarmTest {
 protected:
  void SetUp() override {
    WarmTest::SetUp();
    const std::string torch = rig_.folder() + "/site-packages/torch/";
    for (const char* package : {"_C", "distributed", "multiprocessing"}) {
      std::filesystem::create_directories(torch + package);
      WriteFile(absl::StrCat(torch, package, "/__init__.py"), "");
    }
    WriteFile(torch + "__init__.py",
              "class default_generator:\n    seed = staticmethod(lambda: 0)\n");
    WriteFile(
        torch + "_C/_distributed_c10d.py",
        "import os\n"
        "class TCPStore:\n"
        "    def __init__(self, host_name, port, world_size=None, is_master=False, timeout=1):\n"
        "        print('serves' if is_master else 'client', host_name, port,\n"
        "              os.environ.get('TORCHELASTIC_USE_AGENT_STORE'), flush=True)\n");
    WriteFile(torch + "distributed/distributed_c10d.py",
              "import os\n"
              "from torch._C._distributed_c10d import TCPStore\n"
              "def init_process_group(*arguments):\n    pass\n"
              "def is_torchelastic_launched():\n"
              "    return 'TORCHELASTIC_RUN_ID' in os.environ\n");
    WriteFile(torch + "multiprocessing/__init__.py", "from .spawn import spawn, start_processes\n");
    WriteFile(torch + "multiprocessing/spawn.py",
              "import multiprocessing\n"
              "def start_processes(fn, args=(), nprocs=1, join=True):\n"
              "    for i in range(nprocs):\n"
              "        process = multiprocessing.get_context('spawn').Process(target=fn, args=(i, "
              "*args))\n"
              "        process.start()\n"
              "        process.join()\n"
              "def spawn(fn, args=(), nprocs=1, join=True):\n"
              "    return start_processes(fn, args, nprocs, join)\n");
  }
  StartFrame RankZero() {
    StartFrame worker = Worker();
    for (const char* entry :
         {"CADRE_TORCH_STORE=127.0.0.1:4000", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=4000",
          "TORCHELASTIC_USE_AGENT_STORE=True", "WORLD_SIZE=1", "LOCAL_RANK=0",
          "TORCHELASTIC_RUN_ID=job", "CADRE_JOB=job"}) {
      worker.environment.emplace_back(entry);
    }
    worker.warm.rank_variables = {"RANK", "MASTER_PORT", "CADRE_TORCH_STORE"};
    return worker;
  }
};

constexpr char kStores[] =
    "from torch.distributed.distributed_c10d import TCPStore\n"
    "TCPStore('127.0.0.1', 4000, 1, True)\n"
    "TCPStore(host_name='localhost', port=4000, is_master=True)\n"
    "TCPStore('127.0.0.1', 4001, is_master=True)\n"
    "TCPStore('192.0.2.1', 4000, 1, True)\n";
constexpr char kServed[] =
    "client 127.0.0.1 4000 False\nclient 127.0.0.1 4000 False\n"
    "serves 127.0.0.1 4001 False\nserves 192.0.2.1 4000 False\n";

TEST_F(StoreHookTest, OnlyTheAgentServesAtItsAddress_AndWhoAsksServesAtAnyOther) {
  WriteScript(kStores);
  const StartFrame worker = RankZero();
  EXPECT_EQ(rig_.Run(worker).exit_code, 0);
  EXPECT_EQ(OutputOf(worker.group), kServed);
}

// Whatever the worker has changed in its environment before.
TEST_F(StoreHookTest, SoItIsInWhatAWorkerStarts) {
  WriteFile(rig_.folder() + "/stores.py", kStores);
  WriteScript(
      "import os, subprocess, sys\n"
      "def run(**changes):\n"
      "    subprocess.run([sys.executable, 'stores.py'], env=dict(os.environ, **changes), "
      "check=True)\n"
      "run()\n"
      "run(MASTER_PORT='5')\n"
      "os.environ['MASTER_ADDR'] = 'localhost'\n"
      "run(TORCHELASTIC_USE_AGENT_STORE='True', MASTER_PORT='6')  # as torchrun says\n");
  const StartFrame worker = RankZero();
  EXPECT_EQ(rig_.Run(worker).exit_code, 0);
  std::string torchruns = kServed;
  for (size_t at; (at = torchruns.find("False")) != std::string::npos;) {
    torchruns.replace(at, 5, "True");
  }
  EXPECT_EQ(OutputOf(worker.group), absl::StrCat(kServed, kServed, torchruns));
}

TEST_F(StoreHookTest, SoItIsAfterAWarmStart) {
  WriteScript(absl::StrCat(kStores, "import time\ntime.sleep(int(open('seconds').read()))\n"));
  WriteFile(rig_.folder() + "/seconds", "1000");
  AwaitTemplate(RankZero());
  EndLearner();
  WriteFile(rig_.folder() + "/seconds", "0");
  const StartFrame worker = RankZero();
  EXPECT_EQ(rig_.Run(worker).exit_code, 0);
  EXPECT_TRUE(rig_.Started(worker.group)->warm);
  EXPECT_EQ(OutputOf(worker.group), kServed);
}

// Otherwise all of them would use the port that the program names.
TEST_F(StoreHookTest, RanksThatSeveralWorkersSpawnMeetAtAPortForEachWorker) {
  WriteScript(
      "import torch.multiprocessing as mp\n"
      "from torch.distributed.distributed_c10d import TCPStore\n"
      "def rank(i):\n"
      "    TCPStore('localhost', 12355, 2, i == 0)\n"
      "    TCPStore('localhost', 12356, 2, i == 0)\n"
      "    TCPStore('localhost', 12355, 4, i == 0)\n"
      "if __name__ == '__main__':\n"
      "    mp.spawn(rank, nprocs=2)\n");
  StartFrame worker = RankZero();
  EXPECT_EQ(rig_.Run(worker).exit_code, 0);
  EXPECT_EQ(OutputOf(worker.group),
            "serves localhost 12355 False\nserves localhost 12356 False\n"
            "serves localhost 12355 False\nclient localhost 12355 False\n"
            "client localhost 12356 False\nclient localhost 12355 False\n");
  worker = RankZero();
  for (std::string& entry : worker.environment) {
    if (entry == "LOCAL_RANK=0") entry = "LOCAL_RANK=1";
  }
  EXPECT_EQ(rig_.Run(worker).exit_code, 0);
  const std::string output = OutputOf(worker.group);
  const std::string port = output.substr(17, output.find(" False") - 17);
  EXPECT_NE(port, "12355");
  EXPECT_EQ(
      output,
      absl::StrCat("serves localhost ", port, " False\nserves localhost 12356 False\n",
                   "serves localhost 12355 False\nclient localhost ", port,
                   " False\nclient localhost 12356 False\n", "client localhost 12355 False\n"));
}

// Gloo's threads would abort the process, be it a worker or a rank that a worker has started.
TEST_F(StoreHookTest, ThreadsFinishBeforeAnInterpreterWithAGroupEnds) {
  WriteFile(rig_.folder() + "/rank.py",
            "import hashlib, threading, time\n"
            "from torch.distributed.distributed_c10d import init_process_group\n"
            "init_process_group()\n"
            "block = b'x' * (1 << 20)\n"
            "def work():\n"
            "    end = time.monotonic() + 0.1\n"
            "    while time.monotonic() < end:\n        hashlib.sha256(block).digest()\n"
            "    print('done', flush=True)\n"
            "threading.Thread(target=work, daemon=True).start()\n");
  WriteScript(
      "import subprocess, sys\nsubprocess.run([sys.executable, 'rank.py'], check=True)\n"
      "exec(open('rank.py').read())\n");
  const StartFrame worker = RankZero();
  EXPECT_EQ(rig_.Run(worker).exit_code, 0);
  EXPECT_EQ(OutputOf(worker.group), "done\ndone\n");
}

// The agent does not know that a shell script starts PyTorch, so it serves no store for it.
TEST_F(StoreHookTest, SoTheyDoInRanksThatAScriptsProgramSpawns) {
  WriteScript(
      "import torch.multiprocessing as mp\n"
      "from torch.distributed import distributed_c10d\n"
      "def rank(i):\n"
      "    print(distributed_c10d.init_process_group.__code__.co_filename, flush=True)\n"
      "if __name__ == '__main__':\n    mp.spawn(rank, nprocs=2)\n");
  StartFrame worker = Worker();
  worker.argv = {"/bin/sh", "-c", "$0 train.py", kPython};
  worker.environment.emplace_back("CADRE_JOB=job");
  worker.warm.script.clear();
  EXPECT_EQ(rig_.Run(worker).exit_code, 0);
  EXPECT_EQ(OutputOf(worker.group), "<cadre exits.py>\n<cadre exits.py>\n");
}

// It would mistake a job of one worker for torchrun's, and could not start ranks of its own.
TEST_F(StoreHookTest, LightningIsAloneInAJobOfOneWorker) {
  Install("lightning",
          "from torch.distributed.distributed_c10d import is_torchelastic_launched\n"
          "def is_launched():\n    return is_torchelastic_launched()\n");
  WriteScript(
      "import os, lightning\n"
      "from torch.distributed.distributed_c10d import is_torchelastic_launched\n"
      "print(is_torchelastic_launched(), lightning.is_launched(), 'LOCAL_RANK' in os.environ)\n");
  StartFrame worker = RankZero();
  EXPECT_EQ(rig_.Run(worker).exit_code, 0);
  EXPECT_EQ(OutputOf(worker.group), "True False False\n");
  worker = RankZero();
  for (std::string& entry : worker.environment) {
    if (entry == "WORLD_SIZE=1") entry = "WORLD_SIZE=2";
  }
  EXPECT_EQ(rig_.Run(worker).exit_code, 0);
  EXPECT_EQ(OutputOf(worker.group), "True True True\n");
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
