#include "rpc/program_error.h"

#include <errno.h>

#include <csignal>
#include <string>

#include "gtest/gtest.h"
#include "rpc/worker_end.h"

namespace cadre::rpc {
namespace {

using Kind = ProgramError::Kind;

v1::WorkerExit ExitWith(const std::string& last_lines, int code = 1) {
  v1::WorkerExit exit;
  exit.set_exit_code(code);
  exit.set_last_lines(last_lines);
  return exit;
}

void ExpectFound(const std::string& last_lines, Kind kind, const std::string& text) {
  const auto found = FindProgramError(ExitWith(last_lines));
  ASSERT_TRUE(found.has_value()) << last_lines;
  EXPECT_EQ(found->text, text);
  EXPECT_EQ(found->kind, kind) << last_lines;
}

TEST(ProgramError, AnExceptionWithTheUsersOwnLine) {
  ExpectFound(
      "Traceback (most recent call last):\n"
      "  File \"/home/me/train.py\", line 40, in <module>\n"
      "    main()\n"
      "    ~~~~^^\n"
      "  File \"/home/me/train.py\", line 17, in main\n"
      "    y = model(x)\n"
      "  File \"/venv/lib/python3.11/site-packages/torch/nn/modules/module.py\", line 9, in call\n"
      "    return forward(x)\n"
      "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x5 and 4x4)\n",
      Kind::kException,
      "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x5 and 4x4) (train.py, line 17)");
}

TEST(ProgramError, AnExceptionWithoutAMessage) {
  ExpectFound("Traceback (most recent call last):\n  File \"a.py\", line 2, in f\nAssertionError\n",
              Kind::kException, "AssertionError (a.py, line 2)");
}

TEST(ProgramError, PyTorchsPrefixIsNoPartOfIt) {
  ExpectFound(
      "step 3\n"
      "[rank1]: Traceback (most recent call last):\n"
      "[rank1]:   File \"/home/me/train.py\", line 8, in main\n"
      "[rank1]:     raise ValueError(\"no sample 17\")\n"
      "[rank1]: ValueError: no sample 17\n"
      "[rank1]:[W1124 15:00:00.1 ProcessGroup.cpp:1] Warning: destroy_process_group() was not "
      "called\n",
      Kind::kException, "ValueError: no sample 17 (train.py, line 8)");
}

TEST(ProgramError, OfSeveralTheOneThatEndedIt) {
  ExpectFound(
      "  File \"a.py\", line 1, in f\nKeyError: 'k'\n\n"
      "The above exception was the direct cause of the following exception:\n\n"
      "Traceback (most recent call last):\n  File \"b.py\", line 2, in g\nOSError: gone\n",
      Kind::kException, "OSError: gone (b.py, line 2)");
}

TEST(ProgramError, WhatCannotBeLoaded) {
  ExpectFound(
      "  File \"/home/me/train.py\", line 2\n    def f(:\n          ^\nSyntaxError: invalid "
      "syntax\n",
      Kind::kCannotLoad, "SyntaxError: invalid syntax (train.py, line 2)");
  ExpectFound(
      "Traceback (most recent call last):\n  File \"train.py\", line 1, in <module>\n"
      "    import no_such_module\nModuleNotFoundError: No module named 'no_such_module'\n",
      Kind::kCannotLoad,
      "ModuleNotFoundError: No module named 'no_such_module' (train.py, line 1)");
  const auto library = FindProgramError(
      ExitWith("./train: error while loading shared libraries: libx.so.0: cannot open\n", 127));
  ASSERT_TRUE(library.has_value());
  EXPECT_EQ(library->kind, Kind::kCannotLoad);
  EXPECT_EQ(library->text, "./train: error while loading shared libraries: libx.so.0: cannot open");
}

TEST(ProgramError, WhenItFailed_ByItsErrorFile) {
  const auto seconds = [](const char* json) {
    v1::WorkerExit exit;
    exit.set_error_json(json);
    return ErrorFileSeconds(exit);
  };
  EXPECT_EQ(seconds(R"({"message": {"message": "E", "extraInfo": {"timestamp": "17"}}})"), 17);
  EXPECT_EQ(seconds(R"({"message": "plain", "timestamp": 18})"), 18);
  for (const char* none : {"", "[]", "{", R"({"message": 1})", R"({"message": {"extraInfo": 1}})",
                           R"({"message": "x", "timestamp": "soon"})", R"({"timestamp": 18})"}) {
    EXPECT_FALSE(seconds(none).has_value()) << none;
  }
}

// What CPython 3.8 to 3.13 print about it, without a traceback.
TEST(ProgramError, AProgramThatIsNotThere) {
  const std::string python = "/opt/my env/bin/python3.11: ";
  for (const char* const says :
       {"No module named nosuch",
        "No module named pkg.__main__; 'pkg' is a package and cannot be "
        "directly executed",
        "Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named "
        "'a')",
        "can't find '__main__' module in '/home/me'"}) {
    ExpectFound(python + says + "\n", Kind::kCannotLoad, says);
  }
  const std::string script =
      "can't open file '/home/me/nosuch.py': [Errno 2] No such file or directory";
  const auto found = FindProgramError(ExitWith("python3: " + script + "\n", 2));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kind, Kind::kCannotLoad);
  EXPECT_EQ(found->text, script);
  // The file may exist once the file server answers again.
  EXPECT_FALSE(FindProgramError(
      ExitWith("python3: can't open file '/nfs/a.py': [Errno 116] Stale file handle\n", 2)));
  EXPECT_FALSE(FindProgramError(ExitWith("usage: train.py [-h]\n", 2)));
  ExpectFound("data: No module named x is no error\n", Kind::kLastLine,
              "data: No module named x is no error");
}

TEST(ProgramError, AnImportThatAProgramDidWithoutIsNotWhyItEnded) {
  ExpectFound(
      "Traceback (most recent call last):\n  File \"train.py\", line 1, in <module>\n"
      "ImportError: no apex\ngoing on without apex\nthe disk is full\n",
      Kind::kException, "ImportError: no apex (train.py, line 1); its last line: the disk is full");
}

// Fault (python): A Python program ends with `sys.exit("text")`, or logs an exception and ends
// later -> The last line that it wrote is part of the reason
TEST(ProgramError, TheTextOfAnExit) {
  ExpectFound("data directory is empty\n", Kind::kLastLine, "data directory is empty");
  ExpectFound("warning: slow disk\n\ndata directory is empty\n\n", Kind::kLastLine,
              "data directory is empty");
}

// Fault (python): A process of a `DataLoader` raises, is killed or finds `/dev/shm` full -> The
// reason names it, with its signal or the user's line
TEST(ProgramError, OfADataLoadersProcess) {
  const std::string installed = "  File \"/venv/lib/python3.11/site-packages/torch/utils/data/";
  const std::string caught = "  File \"train.py\", line 30, in main\n" + installed +
                             "dataloader.py\", line 9, in f\n" +
                             "ValueError: Caught ValueError in DataLoader worker process 1.\n"
                             "Original Traceback (most recent call last):\n" +
                             installed + "worker.py\", line 375, in _worker_loop\n";
  ExpectFound(caught + "  File \"data.py\", line 11, in __getitem__\nValueError: no sample 5\n",
              Kind::kException,
              "ValueError: no sample 5 (data.py, line 11, in DataLoader worker process 1)");
  ExpectFound(
      caught +
          "RuntimeError: unable to allocate shared memory(shm) for file </torch_7_1_0>: No "
          "space left on device (28)\n",
      Kind::kOutOfMemory,
      "RuntimeError: unable to allocate shared memory(shm) for file </torch_7_1_0>: No space left "
      "on device (28) (train.py, line 30, in DataLoader worker process 1)");
  ExpectFound(
      installed +
          "signal_handling.py\", line 73, in handler\n"
          "RuntimeError: DataLoader worker (pid 730) is killed by signal: Killed. \n\n"
          "The above exception was the direct cause of the following exception:\n\n"
          "Traceback (most recent call last):\n  File \"train.py\", line 30, in main\n" +
          installed +
          "dataloader.py\", line 1306, in _try_get_data\n"
          "RuntimeError: DataLoader worker (pid(s) 730) exited unexpectedly\n",
      Kind::kException,
      "RuntimeError: DataLoader worker (pid 730) is killed by signal: Killed. (train.py, line 30)");
}

TEST(ProgramError, AVictimOfAnotherRank) {
  const std::string gloo =
      "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer "
      "[10.0.0.7]:14744";
  const std::string lost = "  File \"train.py\", line 3, in reduce\nRuntimeError: " + gloo + "\n\n";
  ExpectFound(lost, Kind::kLostPeer, "RuntimeError: " + gloo + " (train.py, line 3)");
  const std::string during =
      "During handling of the above exception, another exception occurred:\n\n"
      "Traceback (most recent call last):\n";
  ExpectFound(lost + during + "  File \"train.py\", line 9, in main\nMyError: step 7 failed\n",
              Kind::kLostPeer, "MyError: step 7 failed (train.py, line 9)");
  ExpectFound("  File \"train.py\", line 9, in main\nMyError: step 7 failed\n\n" + during + lost,
              Kind::kException, "MyError: step 7 failed (train.py, line 9)");
  v1::WorkerExit aborted = ExitWith(
      "terminate called after throwing an instance of 'gloo::IoException'\n  what():  " + gloo, 0);
  aborted.set_signal(SIGABRT);
  ASSERT_TRUE(FindProgramError(aborted).has_value());
  EXPECT_EQ(FindProgramError(aborted)->kind, Kind::kLostPeer);
}

// Fault (worker): An allocation fails: `MemoryError`, PyTorch's on host or device, or
// `std::bad_alloc` -> The cause is "out of memory" with the program's own words, and the job
// restarts as after any crash
TEST(ProgramError, MemoryOfHostAndDevice) {
  const std::string frame = "  File \"train.py\", line 5, in f\n";
  ExpectFound(frame + "MemoryError\n", Kind::kOutOfMemory, "MemoryError (train.py, line 5)");
  ExpectFound(frame + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
              Kind::kOutOfMemory,
              "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
              "(train.py, line 5)");
  ExpectFound(frame + "RuntimeError: DefaultCPUAllocator: can't allocate memory\n",
              Kind::kOutOfMemory,
              "RuntimeError: DefaultCPUAllocator: can't allocate memory (train.py, line 5)");
  v1::WorkerExit aborted = ExitWith("terminate called: std::bad_alloc\n", 0);
  aborted.set_signal(SIGABRT);
  ASSERT_TRUE(FindProgramError(aborted).has_value());
  EXPECT_EQ(FindProgramError(aborted)->kind, Kind::kOutOfMemory);
}

TEST(ProgramError, AnInterpreterThatAbortsAtItsEnd) {
  v1::WorkerExit aborted = ExitWith(
      "[rank1]:   File \"train.py\", line 9, in main\n[rank1]: ValueError: no sample 17\n"
      "terminate called without an active exception\n",
      0);
  aborted.set_signal(SIGABRT);
  ASSERT_TRUE(FindProgramError(aborted).has_value());
  EXPECT_EQ(FindProgramError(aborted)->text, "ValueError: no sample 17 (train.py, line 9)");
}

TEST(ProgramError, WhatTheLibraryPrintedBeforeItAborted) {
  const auto text = [](const std::string& lines) {
    v1::WorkerExit aborted = ExitWith(lines, 0);
    aborted.set_signal(SIGABRT);
    const auto found = FindProgramError(aborted);
    return found.has_value() ? found->text : "nothing";
  };
  EXPECT_EQ(
      text("step 3\nterminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
           "  what():  [enforce fail at pair.cc:471] op.preamble.length <= op.nbytes. 8 vs 4\n"
           "Fatal Python error: Aborted\n"),
      "gloo::EnforceNotMet: [enforce fail at pair.cc:471] op.preamble.length <= op.nbytes. 8 "
      "vs 4");
  EXPECT_EQ(text("terminate called after throwing an instance of 'int'\n"), "int");
  EXPECT_EQ(text("train: train.cc:12: int main(): Assertion `n > 0' failed.\n"),
            "train: train.cc:12: int main(): Assertion `n > 0' failed.");
  EXPECT_EQ(text("  what():  of nobody\nterminate called without an active exception\n"),
            "nothing");
}

TEST(ProgramError, NothingWhereTheLinesDoNotSay) {
  const std::string exception = "  File \"a.py\", line 1, in f\nValueError: x\n";
  EXPECT_TRUE(FindProgramError(ExitWith(exception)).has_value());
  EXPECT_FALSE(FindProgramError(ExitWith(exception, 3)).has_value());
  EXPECT_FALSE(FindProgramError(ExitWith("")).has_value());
  EXPECT_FALSE(FindProgramError(ExitWith("\n \n")).has_value());
  EXPECT_EQ(FindProgramError(ExitWith("Error: bad\n  File \"\n\"\", line\n\n"))->kind,
            Kind::kLastLine);
  v1::WorkerExit killed = ExitWith(exception, 0);
  killed.set_signal(SIGKILL);
  EXPECT_FALSE(FindProgramError(killed).has_value());
  v1::WorkerExit absent = ExitWith(exception);
  absent.set_exec_errno(ENOENT);
  EXPECT_FALSE(FindProgramError(absent).has_value());
}

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
  // The exception is preferred to an earlier exit that the program caught.
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
  EXPECT_EQ(UnkillableText(remains), "outlives SIGKILL: pid 7 is in nfs_wait (state D)" + advice);
  for (const int pid : {8, 9, 10}) add(pid, "");
  EXPECT_EQ(UnkillableText(remains),
            "outlives SIGKILL: pid 7 is in nfs_wait (state D), pid 8 is in the kernel (state D), "
            "pid 9 is in the kernel (state D) and 1 more" +
                advice);
}

}  // namespace

}  // namespace cadre::rpc
