#include "agent/cluster/slurm_environment.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::Contains;
using ::testing::IsSupersetOf;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

using Variables = std::map<std::string, std::string>;

// On the first of two nodes.
v1::StartPart Batch() {
  v1::StartPart start;
  start.set_user("ann");
  start.set_job_id(7);
  start.set_job_name("train.sh");
  start.add_nodes("node1");
  start.add_nodes("node2");
  start.mutable_part()->set_id(12);
  start.mutable_part()->set_job("train-sh-7");
  start.mutable_part()->set_node("node1");
  start.mutable_part()->set_workers(1);
  start.mutable_part()->set_cpus(1);
  start.mutable_spec()->mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
  start.mutable_spec()->mutable_workers_per_node()->set_count(1);
  start.mutable_spec()->mutable_batch()->set_submit_dir("/home/ann");
  start.mutable_spec()->mutable_batch()->set_submit_host("login");
  return start;
}

// As Slurm 22.05 has them after `sbatch -N2`, but for what only its own programs read.
TEST(SlurmEnvironmentTest, AScriptForWhichNothingWasAskedBesideNodes) {
  const Variables expected = {
      {"ENVIRONMENT", "BATCH"},
      {"SLURMD_NODENAME", "node1"},
      {"SLURM_CLUSTER_NAME", "cadre"},
      {"SLURM_CPUS_ON_NODE", "1"},
      {"SLURM_GTIDS", "0"},
      {"SLURM_JOBID", "7"},
      {"SLURM_JOB_CPUS_PER_NODE", "1(x2)"},
      {"SLURM_JOB_ID", "7"},
      {"SLURM_JOB_NAME", "train.sh"},
      {"SLURM_JOB_NODELIST", "node[1-2]"},
      {"SLURM_JOB_NUM_NODES", "2"},
      {"SLURM_JOB_PARTITION", "all"},
      {"SLURM_JOB_USER", "ann"},
      {"SLURM_LOCALID", "0"},
      {"SLURM_NNODES", "2"},
      {"SLURM_NODEID", "0"},
      {"SLURM_NODELIST", "node[1-2]"},
      {"SLURM_PROCID", "0"},
      {"SLURM_SUBMIT_DIR", "/home/ann"},
      {"SLURM_SUBMIT_HOST", "login"},
      {"SLURM_TASKS_PER_NODE", "1(x2)"},
  };
  EXPECT_EQ(SlurmJobEnvironment(Batch()), expected);
}

// sbatch -N2 --ntasks-per-node=2 --cpus-per-task=2 --gpus-per-node=1 --mem=100
TEST(SlurmEnvironmentTest, AScriptForWhichMuchWasAsked) {
  v1::StartPart start = Batch();
  start.mutable_part()->set_workers(2);
  start.mutable_part()->set_cpus(4);
  start.mutable_part()->set_gpus(1);
  start.mutable_spec()->mutable_workers_per_node()->set_count(2);
  start.mutable_spec()->mutable_batch()->set_ntasks(4);
  start.mutable_spec()->mutable_resources()->set_cpus_per_worker(2);
  start.mutable_spec()->mutable_resources()->set_memory_per_worker(50 << 20);
  start.set_restarts(3);
  const Variables expected = {
      {"SLURM_CPUS_ON_NODE", "4"},   {"SLURM_CPUS_PER_TASK", "2"},
      {"SLURM_GPUS_ON_NODE", "1"},   {"SLURM_GPUS_PER_NODE", "1"},
      {"SLURM_JOB_GPUS", "5"},       {"SLURM_JOB_CPUS_PER_NODE", "4(x2)"},
      {"SLURM_MEM_PER_NODE", "100"}, {"SLURM_NPROCS", "4"},
      {"SLURM_NTASKS", "4"},         {"SLURM_NTASKS_PER_NODE", "2"},
      {"SLURM_RESTART_COUNT", "3"},  {"SLURM_TASKS_PER_NODE", "2(x2)"},
  };
  EXPECT_THAT(SlurmJobEnvironment(start, {5}), IsSupersetOf(expected));
}

TEST(SlurmEnvironmentTest, AnElementOfAnArrayHasItsNumbers) {
  v1::StartPart start = Batch();
  start.set_array(5);
  start.set_array_index(0);
  start.set_array_size(3);
  start.set_array_first(0);
  start.set_array_last(8);
  const Variables expected = {
      {"SLURM_ARRAY_JOB_ID", "5"},   {"SLURM_ARRAY_TASK_COUNT", "3"}, {"SLURM_ARRAY_TASK_ID", "0"},
      {"SLURM_ARRAY_TASK_MAX", "8"}, {"SLURM_ARRAY_TASK_MIN", "0"},   {"SLURM_JOB_ID", "7"},
  };
  EXPECT_THAT(SlurmJobEnvironment(start), IsSupersetOf(expected));
}

TEST(SlurmEnvironmentTest, TasksThatAreNotTheSameOnAllNodes) {
  v1::StartPart start = Batch();
  start.mutable_spec()->mutable_batch()->set_ntasks(3);
  start.mutable_spec()->mutable_workers_per_node()->set_kind(v1::WorkersPerNode::GPU);
  const Variables variables = SlurmJobEnvironment(start);
  EXPECT_THAT(variables, Contains(Pair("SLURM_TASKS_PER_NODE", "2,1")));
  EXPECT_THAT(variables, Contains(Pair("SLURM_NTASKS", "3")));
  EXPECT_THAT(variables, Not(Contains(Key("SLURM_NTASKS_PER_NODE"))));
  // What the other nodes have is not known here.
  EXPECT_THAT(variables, Not(Contains(Key("SLURM_JOB_CPUS_PER_NODE"))));
}

// The second step of the script, on the second of the job's three nodes and on the third.
v1::StartPart Step() {
  v1::StartPart start;
  start.set_user("ann");
  start.set_job_id(9);
  start.set_step_of(7);
  start.set_step(1);
  start.set_job_name("train.sh");
  for (const char* node : {"node1", "node2", "node3"}) start.add_batch_nodes(node);
  for (const char* node : {"node2", "node3"}) start.add_nodes(node);
  start.mutable_part()->set_node("node2");
  start.mutable_part()->set_workers(2);
  start.mutable_part()->set_cpus(4);
  start.mutable_spec()->mutable_workers_per_node()->set_kind(v1::WorkersPerNode::COUNT);
  start.mutable_spec()->mutable_workers_per_node()->set_count(2);
  start.mutable_spec()->mutable_slurm_step();
  return start;
}

TEST(SlurmEnvironmentTest, TheNameIsTheOneThatTheUserGave) {
  v1::StartPart script = Batch();
  script.mutable_spec()->mutable_batch()->set_name("My Training");
  EXPECT_THAT(SlurmJobEnvironment(script), Contains(Pair("SLURM_JOB_NAME", "My Training")));
  v1::StartPart step = Step();
  (*step.mutable_spec()->mutable_env())["SLURM_JOB_NAME"] = "My Training";
  EXPECT_THAT(SlurmJobEnvironment(step), Contains(Pair("SLURM_JOB_NAME", "My Training")));
  step.set_step_of(0);
  EXPECT_THAT(SlurmJobEnvironment(step), Contains(Pair("SLURM_JOB_NAME", "train.sh")))
      << "not that of the shell in which srun was called";
}

TEST(SlurmEnvironmentTest, AStepHasItsOwnNumbersAndThoseOfItsJob) {
  const Variables expected = {
      {"SLURMD_NODENAME", "node2"},
      {"SLURM_CLUSTER_NAME", "cadre"},
      {"SLURM_CPUS_ON_NODE", "4"},
      {"SLURM_JOBID", "7"},
      {"SLURM_JOB_ID", "7"},
      {"SLURM_JOB_NAME", "train.sh"},
      {"SLURM_JOB_NODELIST", "node[1-3]"},
      {"SLURM_JOB_NUM_NODES", "3"},
      {"SLURM_JOB_PARTITION", "all"},
      {"SLURM_JOB_USER", "ann"},
      {"SLURM_NNODES", "2"},
      {"SLURM_NODELIST", "node[1-3]"},
      {"SLURM_NPROCS", "4"},
      {"SLURM_NTASKS", "4"},
      {"SLURM_NTASKS_PER_NODE", "2"},
      {"SLURM_STEPID", "1"},
      {"SLURM_STEP_ID", "1"},
      {"SLURM_STEP_NODELIST", "node[2-3]"},
      {"SLURM_STEP_NUM_NODES", "2"},
      {"SLURM_STEP_NUM_TASKS", "4"},
      {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
      {"SLURM_TASKS_PER_NODE", "2(x2)"},
  };
  EXPECT_EQ(SlurmJobEnvironment(Step()), expected);
}

TEST(SlurmEnvironmentTest, AStepWithFewerTasksOnItsLastNode) {
  v1::StartPart start = Step();
  start.mutable_spec()->mutable_slurm_step()->add_tasks(2);
  start.mutable_spec()->mutable_slurm_step()->add_tasks(1);
  start.mutable_part()->set_gpus(2);
  const Variables variables = SlurmJobEnvironment(start, {0, 3});
  EXPECT_THAT(variables, Contains(Pair("SLURM_STEP_TASKS_PER_NODE", "2,1")));
  EXPECT_THAT(variables, Contains(Pair("SLURM_NTASKS", "3")));
  EXPECT_THAT(variables, Contains(Pair("SLURM_STEP_GPUS", "0,3")));
  EXPECT_THAT(variables, Not(Contains(Key("SLURM_NTASKS_PER_NODE"))));
}

TEST(SlurmEnvironmentTest, SrunAloneIsStepZeroOfItsOwnJob) {
  v1::StartPart start = Step();
  start.set_step_of(0);
  start.set_step(0);
  start.clear_batch_nodes();
  const Variables variables = SlurmJobEnvironment(start);
  EXPECT_THAT(variables, Contains(Pair("SLURM_JOB_ID", "9")));
  EXPECT_THAT(variables, Contains(Pair("SLURM_STEP_ID", "0")));
  EXPECT_THAT(variables, Contains(Pair("SLURM_JOB_NODELIST", "node[2-3]")));
  EXPECT_THAT(variables, Contains(Pair("SLURM_JOB_CPUS_PER_NODE", "4(x2)")));
}

}  // namespace
}  // namespace cadre::agent
