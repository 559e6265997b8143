#include "agent/core/exits.h"

#include <errno.h>

#include <string>

#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

TEST(ClassifyExit, Table) {
  struct Case {
    int code;
    int signal;
    int exec_errno;
    bool out_of_memory;
    v1::FailureCause expected;
  };
  for (const Case& c : {
           Case{0, 0, 0, false, v1::FAILURE_CAUSE_UNSPECIFIED},
           Case{0, 0, 0, true, v1::FAILURE_CAUSE_UNSPECIFIED},
           Case{1, 0, 0, false, v1::CRASH},
           Case{0, 9, 0, false, v1::CRASH},
           Case{0, 9, 0, true, v1::OUT_OF_MEMORY},
           Case{0, 15, 0, false, v1::PREEMPTED},
           Case{1, 0, 0, true, v1::OUT_OF_MEMORY},
           Case{127, 0, ENOENT, false, v1::EXEC_FAILED},
           Case{0, 0, EACCES, false, v1::EXEC_FAILED},
           Case{0, 0, EAGAIN, false, v1::CRASH},
           Case{0, 0, EMFILE, false, v1::CRASH},
           Case{0, 0, ENFILE, false, v1::CRASH},
           Case{0, 0, ENOMEM, false, v1::CRASH},
       }) {
    v1::WorkerExit exit;
    exit.set_exit_code(c.code);
    exit.set_signal(c.signal);
    exit.set_exec_errno(c.exec_errno);
    exit.set_out_of_memory(c.out_of_memory);
    EXPECT_EQ(ClassifyExit(exit, false), c.expected) << exit.ShortDebugString();
  }
}

TEST(ClassifyExit, ByWhatTheProgramSaid) {
  v1::WorkerExit exit;
  exit.set_exit_code(1);
  const std::string frame = "  File \"train.py\", line 5\n";
  exit.set_last_lines(frame + "SyntaxError: invalid syntax\n");
  EXPECT_EQ(ClassifyExit(exit, false), v1::LOAD_FAILED);
  exit.set_last_lines(frame + "MemoryError\n");
  EXPECT_EQ(ClassifyExit(exit, false), v1::OUT_OF_MEMORY);
  exit.set_last_lines(frame + "ValueError\n");
  EXPECT_EQ(ClassifyExit(exit, false), v1::CRASH);
}

TEST(ClassifyExit, SigtermThatCadreSent_IsNoPreemption) {
  v1::WorkerExit exit;
  exit.set_signal(15);
  EXPECT_EQ(ClassifyExit(exit, true), v1::CRASH);
}

TEST(ExitStatusOfRejection, Table) {
  EXPECT_EQ(ExitStatusOfRejection(absl::StatusCode::kInvalidArgument), 64);
  EXPECT_EQ(ExitStatusOfRejection(absl::StatusCode::kFailedPrecondition), 75);
  EXPECT_EQ(ExitStatusOfRejection(absl::StatusCode::kAlreadyExists), 75);
  EXPECT_EQ(ExitStatusOfRejection(absl::StatusCode::kUnauthenticated), 69);
  EXPECT_EQ(ExitStatusOfRejection(absl::StatusCode::kInternal), 70);
}

TEST(FailureOf, SaysHowTheWorkerEnded) {
  v1::WorkerExited exited;
  exited.set_local_rank(1);
  exited.set_cause(v1::CRASH);
  exited.mutable_exit()->set_signal(9);
  exited.mutable_exit()->set_last_lines("last");
  exited.mutable_evidence()->set_summary("gone");
  const v1::Failure failure = FailureOf(exited, 4, "n1", 3);
  EXPECT_EQ(failure.message(),
            "rank 5 (local rank 1) on n1 was killed by signal 9 (SIGKILL) in generation 3");
  EXPECT_EQ(failure.cause(), v1::CRASH);
  EXPECT_EQ(failure.node(), "n1");
  EXPECT_EQ(failure.exit().last_lines(), "last");
  ASSERT_EQ(failure.evidence_size(), 1);
  EXPECT_EQ(failure.evidence(0).rank(), 5);

  exited.mutable_exit()->set_exec_errno(ENOENT);
  EXPECT_EQ(FailureOf(exited, 4, "n1", 3).message(),
            "rank 5 (local rank 1) on n1 could not be started: No such file or directory in "
            "generation 3");
}

}  // namespace
}  // namespace cadre::agent
