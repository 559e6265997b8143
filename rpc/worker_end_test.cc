#include "rpc/worker_end.h"

#include <errno.h>

#include <string>

#include "gtest/gtest.h"

namespace cadre::rpc {
namespace {

TEST(WorkerEnd, WhichWorker) {
  EXPECT_EQ(WorkerName(3, 1, "n0"), "rank 3 (local rank 1) on n0");
  EXPECT_EQ(WorkerName(3, 1), "rank 3 (local rank 1)");
}

TEST(WorkerEnd, Words) {
  v1::WorkerExit exit;
  exit.set_exit_code(7);
  EXPECT_EQ(HowItEnded(exit, v1::CRASH), "exited with status 7");
  exit.set_signal(11);
  EXPECT_EQ(HowItEnded(exit, v1::CRASH), "was killed by signal 11 (SIGSEGV)");
  exit.set_core_dumped(true);
  EXPECT_EQ(HowItEnded(exit, v1::CRASH), "was killed by signal 11 (SIGSEGV), core dumped");
  EXPECT_EQ(HowItEnded(exit, v1::OUT_OF_MEMORY), "was killed because memory ran out");
  EXPECT_EQ(HowItEnded(exit, v1::PREEMPTED),
            "was ended by SIGTERM, which Cadre did not send: preempted");
  exit.set_ended_with("the supervisor is gone");
  EXPECT_EQ(HowItEnded(exit, v1::CRASH), "was killed: the supervisor is gone");
}

TEST(WorkerEnd, WhereItWas) {
  v1::RankEvidence at;
  at.set_python(v1::IN_OWN_CODE);
  at.set_python_what("ctypes.string_at(0)");
  at.set_python_where("train.py:8 in main");
  v1::WorkerExit exit;
  exit.set_signal(11);
  EXPECT_EQ(HowItEnded(exit, v1::CRASH, at),
            "was killed by signal 11 (SIGSEGV) at ctypes.string_at(0) (train.py:8 in main)");
  at.set_python(v1::IN_COLLECTIVE);
  at.set_python_what("all_reduce");
  EXPECT_EQ(HowItEnded(exit, v1::CRASH, at),
            "was killed by signal 11 (SIGSEGV) in all_reduce (train.py:8 in main)");
  exit.clear_signal();
  exit.set_exit_code(3);
  at.clear_python();
  at.clear_python_what();
  EXPECT_EQ(HowItEnded(exit, v1::CRASH, at), "exited with status 3 at train.py:8 in main");
  // An exception says it better than an exit that somebody caught before.
  exit.set_exit_code(1);
  exit.set_last_lines("  File \"train.py\", line 5, in f\nKeyError: 'k'\n");
  EXPECT_EQ(HowItEnded(exit, v1::CRASH, at),
            "exited with status 1: KeyError: 'k' (train.py, line 5)");
}

TEST(WorkerEnd, WithoutDetails) {
  EXPECT_EQ(WithoutDetails("rank 1 on n0 exited with status 1: KeyError: 'k' in generation 1"),
            "rank 1 on n0 exited with status 1");
  EXPECT_EQ(WithoutDetails("rank 1 was killed by signal 11 (SIGSEGV) at a (train.py:8 in main)"),
            "rank 1 was killed by signal 11 (SIGSEGV)");
  EXPECT_EQ(WithoutDetails("rank 1 made no progress for 4 s: it sleeps"),
            "rank 1 made no progress for 4 s: it sleeps");
}

TEST(WorkerEnd, WhatItsProgramSaid) {
  v1::WorkerExit exit;
  exit.set_exit_code(1);
  exit.set_last_lines("  File \"train.py\", line 5, in f\nMemoryError\n");
  EXPECT_EQ(HowItEnded(exit, v1::CRASH), "exited with status 1: MemoryError (train.py, line 5)");
  EXPECT_EQ(HowItEnded(exit, v1::OUT_OF_MEMORY),
            "ran out of memory: MemoryError (train.py, line 5)");
  EXPECT_EQ(HowItEnded(exit, v1::LOAD_FAILED),
            "could not be loaded: MemoryError (train.py, line 5)");
}

TEST(WorkerEnd, WhatItsProgramSaidLastMayNotBeWhy) {
  v1::WorkerExit exit;
  exit.set_exit_code(1);
  exit.set_last_lines("step 3\nno data in /data\n");
  EXPECT_EQ(HowItEnded(exit, v1::CRASH), "exited with status 1; its last line: no data in /data");
}

TEST(WorkerEnd, AProcessOfItsThatTheKernelKilled) {
  v1::WorkerExit exit;
  exit.set_out_of_memory(true);
  exit.set_exit_code(137);
  EXPECT_EQ(HowItEnded(exit, v1::OUT_OF_MEMORY), "was killed because memory ran out");
  exit.set_exit_code(1);
  exit.set_last_lines(
      "  File \"train.py\", line 5, in f\nRuntimeError: DataLoader worker (pid 7) is killed by "
      "signal: Killed. \n");
  EXPECT_EQ(HowItEnded(exit, v1::OUT_OF_MEMORY),
            "ran out of memory: RuntimeError: DataLoader worker (pid 7) is killed by signal: "
            "Killed. (train.py, line 5)");
}

TEST(WorkerEnd, AProgramThatCouldNotBeStarted) {
  v1::WorkerExit exit;
  exit.set_exec_errno(ENOENT);
  EXPECT_EQ(HowItEnded(exit, v1::EXEC_FAILED), "could not be started: No such file or directory");
  exit.set_exec_step("chdir");
  EXPECT_EQ(HowItEnded(exit, v1::EXEC_FAILED),
            "could not be started: chdir: No such file or directory");
}

TEST(WhatRemains, NamesTheFirstFew) {
  v1::WorkerRemains remains;
  const auto add = [&](int pid, const std::string& wchan) {
    v1::RemainingProcess* process = remains.add_processes();
    process->set_pid(pid);
    process->set_state("D");
    process->set_wchan(wchan);
  };
  const std::string advice =
      "; only the file system or device that it waits for, or a restart of the machine, ends it";
  add(7, "nfs_wait");
  EXPECT_EQ(WhatRemains(remains), "outlives SIGKILL: pid 7 is in nfs_wait (state D)" + advice);
  for (const int pid : {8, 9, 10}) add(pid, "");
  EXPECT_EQ(WhatRemains(remains),
            "outlives SIGKILL: pid 7 is in nfs_wait (state D), pid 8 is in the kernel (state D), "
            "pid 9 is in the kernel (state D) and 1 more" +
                advice);
}

}  // namespace
}  // namespace cadre::rpc
