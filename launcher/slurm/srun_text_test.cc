// Tests the lines of srun about tasks, which are those of Slurm's srun.
#include "launcher/slurm/srun_text.h"

#include <errno.h>
#include <signal.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::JobStatus Step(v1::JobPhase outcome) {
  v1::JobStatus job;
  job.set_submission(63);
  job.set_step_of(57);
  job.set_step(2);
  job.mutable_verdict()->set_outcome(outcome);
  return job;
}

void Set(v1::Failure* failure, const std::string& node, int rank, int code, int signal = 0) {
  failure->set_node(node);
  failure->set_rank(rank);
  failure->mutable_exit()->set_exit_code(code);
  failure->mutable_exit()->set_signal(signal);
}

TEST(SrunTextTest, Labels) {
  EXPECT_EQ(TaskLabel(3, 8), "3: ");
  EXPECT_EQ(TaskLabel(3, 11), " 3: ");
  EXPECT_EQ(TaskLabel(10, 11), "10: ");
  EXPECT_EQ(TasksText({3}), "task 3");
  EXPECT_EQ(TasksText({0, 1, 2, 5, 7, 8}), "tasks 0-2,5,7-8");
}

TEST(SrunTextTest, Ids) {
  EXPECT_EQ(StepIdOf(Step(v1::FAILED)), "57.2");
  v1::JobStatus job;
  job.set_submission(63);
  EXPECT_EQ(StepIdOf(job), "63.0");
}

TEST(SrunTextTest, Running) {
  v1::JobStatus job = Step(v1::FAILED);
  job.set_waiting_for("1 node of job 57: other steps use them");
  EXPECT_EQ(RunningText(job), "StepId=57.2 waits for 1 node of job 57: other steps use them");
  job.set_world_size(4);
  job.set_workers_running(4);
  EXPECT_EQ(RunningText(job), "StepId=57.2 tasks 0-3: running");
  job.set_workers_running(3);
  EXPECT_EQ(RunningText(job), "StepId=57.2 tasks 0-3: 3 running");
}

TEST(SrunTextTest, TasksThatFailed) {
  v1::JobStatus job = Step(v1::FAILED);
  Set(job.mutable_verdict()->mutable_root_cause(), "n1", 1, 2);
  Set(job.mutable_verdict()->add_collateral(), "n1", 0, 2);
  Set(job.mutable_verdict()->add_collateral(), "n2", 3, 0, SIGSEGV);
  job.mutable_verdict()->mutable_collateral(1)->mutable_exit()->set_core_dumped(true);
  EXPECT_THAT(FailureLines(job), ElementsAre("n1: tasks 0-1: Exited with exit code 2",
                                             "n2: task 3: Segmentation fault (core dumped)"));
}

TEST(SrunTextTest, TasksThatDidNotBeginOrHadNoMemory) {
  v1::JobStatus job = Step(v1::FAILED);
  v1::Failure* cause = job.mutable_verdict()->mutable_root_cause();
  Set(cause, "n1", 0, 0);
  cause->mutable_exit()->set_exec_errno(ENOENT);
  cause->mutable_exit()->set_exec_step("exec");
  EXPECT_THAT(FailureLines(job),
              ElementsAre("n1: task 0: cannot start: exec: No such file or directory"));
  Set(cause, "n1", 0, 0, SIGKILL);
  cause->set_cause(v1::OUT_OF_MEMORY);
  EXPECT_THAT(FailureLines(job), ElementsAre("n1: task 0: Out Of Memory"));
}

TEST(SrunTextTest, EndsThatNoTaskCaused) {
  EXPECT_THAT(FailureLines(Step(v1::SUCCEEDED)), IsEmpty());
  v1::JobStatus job = Step(v1::CANCELLED_PHASE);
  EXPECT_THAT(FailureLines(job), ElementsAre("StepId=57.2 CANCELLED"));
  job = Step(v1::FAILED);
  job.mutable_verdict()->set_message("node n2 was lost");
  job.mutable_verdict()->mutable_root_cause()->set_rank(-1);
  EXPECT_THAT(FailureLines(job), ElementsAre("StepId=57.2 FAILED: node n2 was lost"));
}

}  // namespace
}  // namespace cadre::launcher
