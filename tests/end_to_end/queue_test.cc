// A Slurm user's day in the queue of a cluster of Cadre: arrays, dependencies, holds, requeues,
// signals and time limits, and what is known of jobs afterwards.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/end_to_end/slurm_user.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using QueueTest = SlurmUser;

TEST_F(QueueTest, AnArrayRunsEachElementAndAJobWaitsForAllOfThem) {
  Write("array.sh",
        "#!/bin/bash\n"
        "#SBATCH --array=1-5:2%2 --output=a-%A-%a.out\n"
        "echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT, "
        "$SLURM_ARRAY_TASK_MIN to $SLURM_ARRAY_TASK_MAX\n"
        "exit $((SLURM_ARRAY_TASK_ID == 3))\n");
  EXPECT_EQ(Run("sbatch --parsable array.sh"), "1");
  EXPECT_EQ(Run("sbatch --parsable --wait -d afterany:1 -o then.out --wrap 'cat a-1-*.out'"), "4");
  EXPECT_EQ(Output("then.out"),
            "1 1 of 3, 1 to 5\n"
            "1 3 of 3, 1 to 5\n"
            "1 5 of 3, 1 to 5\n");
  EXPECT_EQ(Run("sacct -j 1 -X -n -P -o JobID,State"), "1_1|COMPLETED\n1_3|FAILED\n1_5|COMPLETED");
}

TEST_F(QueueTest, AJobWhoseDependencyFailedIsCancelled) {
  Run("sbatch --parsable --hold -o /dev/null --wrap false");
  Run("sbatch --parsable -d afterok:1 -o never.out --wrap true");
  EXPECT_EQ(Run("squeue -h -o '%i %t %r'"), "1 PD JobHeldUser\n2 PD Dependency");
  Run("scontrol release 1");
  AwaitPhase("2", "CANCELLED_PHASE");
  EXPECT_THAT(Run("cadre=$(readlink bin/sbatch); $cadre why 2"), HasSubstr("job 1 to succeed"));
}

TEST_F(QueueTest, AScriptPutsItselfBackIntoTheQueue) {
  Write("again.sh",
        "#!/bin/bash\n"
        "#SBATCH -o again.out\n"
        "echo run ${SLURM_RESTART_COUNT:-0}\n"
        "if ((${SLURM_RESTART_COUNT:-0} == 0)); then scontrol requeue $SLURM_JOB_ID; sleep 100; "
        "fi\n");
  EXPECT_EQ(Run("sbatch --parsable --wait again.sh"), "1");
  EXPECT_THAT(Output("again.out"), AllOf(HasSubstr("run 0\n"), HasSubstr("run 1\n")));
  EXPECT_THAT(Output("again.out"), HasSubstr("DUE TO JOB REQUEUE"));
}

TEST_F(QueueTest, AScriptIsWarnedBeforeItsTimeEnds_AndASignalReachesIt) {
  Write("warned.sh",
        "#!/bin/bash\n"
        "#SBATCH -o warned.out --signal=B:USR1@57 --time=1\n"
        "trap 'echo warned; exit 0' USR1\n"
        "trap 'echo signalled; touch signalled' USR2\n"
        "touch ready\n"
        "while true; do sleep 0.05; done\n");
  EXPECT_EQ(Run("sbatch --parsable warned.sh"), "1");
  Run("until [ -e ready ]; do sleep 0.02; done; scancel -b -s USR2 1");
  Run("until [ -e signalled ]; do sleep 0.02; done");
  AwaitPhase("1", "SUCCEEDED");
  EXPECT_EQ(Output("warned.out"), "signalled\nwarned\n");
}

TEST_F(QueueTest, NodesAreChosenByName) {
  Write("where.sh", "#!/bin/bash\necho $SLURM_JOB_NODELIST\n");
  Run("sbatch --wait -o one.out -w n2 where.sh; sbatch --wait -o two.out -N2 -x n1 where.sh");
  EXPECT_EQ(Output("one.out"), "n2\n");
  EXPECT_EQ(Output("two.out"), "n[0,2]\n");
}

TEST_F(QueueTest, WhatEndedIsKept) {
  Run("sbatch --wait -o /dev/null -J first --wrap true; sbatch -W -o /dev/null --wrap false || "
      "true");
  const std::string cadre = "cadre=$(readlink bin/sbatch); $cadre ";
  EXPECT_THAT(Run(cadre + "history"), AllOf(HasSubstr("first"), HasSubstr("failed")));
  EXPECT_THAT(Run(cadre + "usage --by user"), HasSubstr("root"));
}

}  // namespace
}  // namespace cadre
