// A Slurm user's scripts on a cluster of Cadre: sbatch, srun and the commands that look at jobs.
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/end_to_end/slurm_user.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

using BatchTest = SlurmUser;

TEST_F(BatchTest, AScriptRunsStepsOnItsNodesAndWritesWhereSbatchDoes) {
  Write("train.sh",
        "#!/bin/bash\n"
        "#SBATCH --job-name=train --nodes=2\n"
        "#SBATCH --ntasks-per-node=2\n"
        "echo batch $SLURM_JOB_ID $SLURM_JOB_NAME $SLURM_JOB_NODELIST $SLURM_TASKS_PER_NODE $1\n"
        "srun bash -c 'echo task $SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME '\n"
        "srun -N1 -n1 bash -c 'echo one $SLURM_STEP_ID; exit 3'\n"
        "echo status $?\n");
  EXPECT_EQ(Run("sbatch --wait train.sh words"), "Submitted batch job 1");
  const std::string output = Output("slurm-1.out");
  EXPECT_THAT(output, HasSubstr("batch 1 train n[0-1] 2(x2) words\n"));
  for (int task = 0; task < 4; ++task) {
    EXPECT_THAT(output, HasSubstr(absl::StrCat("task ", task, " of 4 on n", task / 2, "\n")));
  }
  EXPECT_THAT(output, AllOf(HasSubstr("one 1\n"), HasSubstr("status 3\n")));
  EXPECT_EQ(Run("sacct -j 1 -X -n --parsable2 -o JobID,State,NodeList"), "1|COMPLETED|n[0-1]");
}

TEST_F(BatchTest, StepsRunSideBySideOnPartsOfTheAllocation) {
  Write("parts.sh",
        "#!/bin/bash\n"
        "#SBATCH -N2 --ntasks-per-node=2 -o parts.out\n"
        "srun -N1 -n2 --exact bash -c 'until [ -e both ]; do sleep 0.02; done' &\n"
        "srun -N1 -n2 --exact touch both &\n"
        "wait\n"
        "echo both ran\n");
  Run("sbatch --wait parts.sh");
  EXPECT_EQ(Output("parts.out"), "both ran\n");
}

TEST_F(BatchTest, SubmittedByCadreToo_AndStepsAreCancelledWithTheirJob) {
  Write("long.sh", "#!/bin/sh\nsrun sleep 1000\n");
  EXPECT_THAT(Run("cadre=$(readlink bin/sbatch); $cadre submit -N2 long.sh"),
              HasSubstr("submitted long-sh as job 1"));
  Await("1.0", "running",
        [](const nlohmann::json& status) { return status["phase"] == "RUNNING"; });
  EXPECT_THAT(Run("squeue -h -j 1 -o '%i %t %D %N'"), HasSubstr("1 R 2 n[0-1]"));
  Run("scancel 1");
  AwaitPhase("1", "CANCELLED_PHASE");
  AwaitPhase("1.0", "CANCELLED_PHASE");
}

TEST_F(BatchTest, WrappedCommandsAndScriptsFromStandardInput) {
  EXPECT_EQ(Run("sbatch --parsable --wait -o wrap.out --wrap 'echo wrapped $SLURM_JOB_NAME'"), "1");
  EXPECT_EQ(Output("wrap.out"), "wrapped wrap\n");
  EXPECT_EQ(Run("printf '#!/bin/sh\\necho read\\n' | sbatch --parsable --wait -o %x-%j.out"), "2");
  EXPECT_EQ(Output("sbatch-2.out"), "read\n");
}

// Fault (queue): A batch script exits with an error -> The job fails with this exit status
TEST_F(BatchTest, TheScriptsExitStatusIsTheJobs) {
  const auto shell = Shell("sbatch --wait -o /dev/null --wrap 'exit 5'");
  EXPECT_EQ(shell->Wait(kTimeout), 5) << OutputOf(*shell);
  EXPECT_EQ(Run("sacct -j 1 -X -n -P -o State,ExitCode"), "FAILED|5:0");
}

// Fault (input): A file is no batch script, or asks for what cannot be -> One line says so
TEST_F(BatchTest, WhatIsNoScriptIsRefused) {
  Write("no_shebang", "echo hello\n");
  Write("dos", "#!/bin/sh\r\necho hello\r\n");
  Write("unknown", "#!/bin/sh\n#SBATCH --nodez=2\n");
  const std::map<std::string, std::string> refused = {
      {"sbatch no_shebang", "#!"},      {"sbatch dos", "DOS"},     {"sbatch unknown", "--nodez"},
      {"sbatch none", "none"},          {"sbatch .", "directory"}, {"srun --jobid=77 true", "77"},
      {"sbatch -N x --wrap true", "x"}, {"scancel 99", "99"}};
  for (const auto& [line, says] : refused) {
    const auto shell = Shell(line);
    EXPECT_NE(shell->Wait(kTimeout), 0) << line;
    EXPECT_THAT(OutputOf(*shell), HasSubstr(says)) << line;
  }
}

}  // namespace
}  // namespace cadre
