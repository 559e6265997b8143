#include "rpc/worker_end.h"

#include <errno.h>

#include "gtest/gtest.h"

namespace cadre::rpc {
namespace {

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

TEST(WorkerEnd, AProgramThatCouldNotBeStarted) {
  v1::WorkerExit exit;
  exit.set_exec_errno(ENOENT);
  EXPECT_EQ(HowItEnded(exit, v1::EXEC_FAILED), "could not be started: No such file or directory");
  exit.set_exec_step("chdir");
  EXPECT_EQ(HowItEnded(exit, v1::EXEC_FAILED),
            "could not be started: chdir: No such file or directory");
}

}  // namespace
}  // namespace cadre::rpc
