#include "launcher/slurm/batch_script.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/spec/reader.h"

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

# One launcher per node. It is Cadre that decides what the end of one of them means, not srun. The
# state lets a job that was put back into the queue go on counting its generations.
status=0
srun --ntasks-per-node=1 --kill-on-bad-exit=0 --no-kill --wait=0 --cpu-bind=none \
  '/opt/cadre'\''s/cadre' run --state-dir 'logs/mnist/state' '/home/user/job.yaml' || status=$?

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

TEST(BatchScriptTest, GraceIsWithinSlurmsWarning) {
  EXPECT_THAT(Script("name: a\ncommand: [x]\ntimeouts: {stop_grace: 20h}\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("timeouts.stop_grace: ")));
}

}  // namespace
}  // namespace cadre::launcher
