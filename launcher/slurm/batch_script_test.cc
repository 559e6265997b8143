#include "launcher/slurm/batch_script.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/spec/job_spec.h"

namespace cadre::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

absl::StatusOr<std::string> Script(const std::string& yaml) {
  absl::StatusOr<v1::JobSpec> spec = ReadSpec(yaml, "job.yaml");
  if (!spec.ok()) return spec.status();
  FillSpecDefaults(*spec);
  BatchScriptOptions options;
  options.cadre = "/opt/cadre's/cadre";
  options.spec_path = "/home/user/job.yaml";
  return BatchScript(*spec, options);
}

TEST(BatchScriptTest, PlainJob) {
  const auto script = Script("name: mnist\ncommand: [./train]\nnodes: 2\n");
  ASSERT_OK(script);
  EXPECT_EQ(*script, R"(#!/bin/bash
# Made by 'cadre slurm script'; hand it to sbatch.
#SBATCH --job-name=mnist
#SBATCH --nodes=2
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@60
#SBATCH --ntasks-per-node=1

# If sbatch was called within another job, that job's variables were passed on, and srun would take
# them for this job's. Launchers would do the same with what another launcher set for its processes.
unset "${!SLURM_STEP_@}" "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_PER_@}" "${!SLURM_MEM_BIND@}" \
  "${!OMPI_@}" "${!PMIX_@}" "${!PMI_@}" SLURM_DISTRIBUTION SLURM_EXACT SLURM_EXCLUSIVE \
  SLURM_HINT SLURM_LOCALID SLURM_NODEID SLURM_PROCID SLURM_THREADS_PER_CORE

# Each job, and each task of an array, has a state directory of its own. A job that was put back into
# the queue finds its state there, and continues to count its generations.
state='logs/mnist'/slurm-$SLURM_JOB_ID${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
mkdir -p "$state"
rm -f "$state/verdict.json"

# One launcher per node. Cadre, not srun, decides what the end of one of them means: if there is a
# verdict, its exit status counts, and not that of srun.
status=0
srun --ntasks-per-node=1 --kill-on-bad-exit=0 --no-kill --wait=0 --cpu-bind=none \
  '/opt/cadre'\''s/cadre' run --state-dir "$state" '/home/user/job.yaml' || status=$?
verdict=$(sed -n 's/^ "exit_status": \([0-9]*\).*/\1/p' "$state/verdict.json" 2> /dev/null)
status=${verdict:-$status}

# 75: worth trying later. Slurm's warning (--signal above) ended it in time for a checkpoint, or
# too few nodes were left.
if [ "$status" -eq 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 16 ]; then
  echo "put back into the queue"
  scontrol requeue "$SLURM_JOB_ID" && exit 75
fi
exit "$status"
)");
}

TEST(BatchScriptTest, AllThatSlurmIsToldOf) {
  const auto script = Script(R"(
name: big
command: [./train]
nodes: 2..4
spares: 1
workers_per_node: 4
resources: {gpus_per_worker: 2, cpus_per_worker: 3, memory_per_worker: 1GiB}
timeouts: {stop_grace: 90s}
slurm: {partition: gpu, account: x, extra: ["--time=04:00:00"]}
)");
  ASSERT_OK(script);
  EXPECT_THAT(*script,
              AllOf(HasSubstr("#SBATCH --nodes=2-5\n"), HasSubstr("#SBATCH --gpus-per-node=8\n"),
                    HasSubstr("#SBATCH --cpus-per-task=12\n"), HasSubstr("#SBATCH --mem=4096M\n"),
                    HasSubstr("#SBATCH --signal=USR1@120\n"), HasSubstr("--partition=gpu\n"),
                    Not(HasSubstr("#SBATCH --ntasks-per-node")), HasSubstr("#SBATCH --account=x\n"),
                    HasSubstr("#SBATCH --time=04:00:00\n")));
}

TEST(BatchScriptTest, GpusAreCountedBySomebody) {
  const std::string job = "name: a\ncommand: [./train]\nworkers_per_node: gpu\n";
  EXPECT_THAT(Script(job),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(StartsWith("workers_per_node: "), HasSubstr("--gpus-per-node=N"))));
  const auto script = Script(job + "slurm: {extra: [\"--gpus-per-node=8\"]}\n");
  ASSERT_OK(script);
  EXPECT_THAT(*script, Not(HasSubstr("--gpus-per-node=1")));
}

// Cadre's own limit comes before Slurm's warning, which may come a minute early.
TEST(BatchScriptTest, TheTimeLimitIsMadeFromTheJobs) {
  const std::string job = "name: a\ncommand: [./train]\ntimeouts: {total: 2h, stop_grace: 90s}\n";
  const auto script = Script(job);
  ASSERT_OK(script);
  EXPECT_THAT(*script, HasSubstr("#SBATCH --time=123\n"));
  for (const char* const own : {"--time=04:00:00", "-t 10", "--time 10"}) {
    const auto with_own = Script(absl::StrCat(job, "slurm: {extra: [\"", own, "\"]}\n"));
    ASSERT_OK(with_own);
    EXPECT_THAT(*with_own, Not(HasSubstr("--time=123")));
    EXPECT_THAT(*with_own, HasSubstr(absl::StrCat("#SBATCH ", own, "\n")));
  }
}

TEST(BatchScriptTest, GraceIsWithinSlurmsWarning) {
  EXPECT_THAT(Script("name: a\ncommand: [x]\ntimeouts: {stop_grace: 20h}\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("timeouts.stop_grace: ")));
}

}  // namespace
}  // namespace cadre::launcher
