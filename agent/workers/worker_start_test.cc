#include "agent/workers/worker_start.h"

#include <errno.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

class PrepareWorkersTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path =
        std::filesystem::path(testing::TempDir() + "/start_XXXXXX").lexically_normal();
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    options_.output.log_dir = path + "/logs";
    options_.scratch = path + "/scratch";
    options_.environment.job = "mnist";
    options_.environment.generation = 2;
    options_.environment.assign.set_run("5Z");
    options_.environment.assign.set_first_rank(4);
    options_.environment.assign.set_local_world_size(2);
    options_.environment.assign.set_world_size(8);
    options_.environment.spec.add_command("train");
    options_.environment.spec.add_command("--gpu=${local_rank}");
    options_.environment.spec.set_working_dir("/data");
  }

  WorkerStartOptions options_;
};

TEST_F(PrepareWorkersTest, EveryWorker_HasItsOwnPathsAndArguments) {
  const auto frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  ASSERT_EQ(frames->size(), 2u);
  const supervisor::StartFrame& second = (*frames)[1];
  const std::string directory = options_.output.log_dir + "/mnist/run_5Z/generation_2/rank_5";
  EXPECT_THAT(second.argv, ElementsAre("train", "--gpu=1"));
  EXPECT_EQ(second.stdout_path, directory + "/stdout.log");
  EXPECT_EQ(second.stderr_path, directory + "/stderr.log");
  EXPECT_EQ(second.error_file, directory + "/error.json");
  EXPECT_EQ(second.working_dir, "/data");
  EXPECT_THAT(second.environment, testing::Contains("RANK=5"));
  EXPECT_THAT(second.environment,
              testing::Contains("TORCHELASTIC_ERROR_FILE=" + directory + "/error.json"));
  EXPECT_TRUE(std::filesystem::is_directory(directory));
  EXPECT_THAT(second.cpus, IsEmpty());
}

TEST_F(PrepareWorkersTest, NoLogDirectory_ErrorFilesGoToScratch) {
  options_.output.log_dir.clear();
  const auto frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_EQ((*frames)[0].stdout_path, "");
  EXPECT_THAT((*frames)[0].error_file, HasSubstr(options_.scratch));
}

TEST_F(PrepareWorkersTest, RelativeLogDirectory_IsMadeAbsoluteForTheWorker) {
  options_.output.log_dir =
      std::filesystem::relative(options_.output.log_dir, std::filesystem::current_path());
  const auto frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_EQ((*frames)[0].error_file[0], '/');
}

TEST_F(PrepareWorkersTest, Routing_ChoosesFilesAndTerminal) {
  options_.output.standard_output = {{true, false}};
  options_.output.standard_error = {{false, true}, {true, true}};
  options_.output.terminal_ranks = {4};
  const auto frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_FALSE((*frames)[0].forward_stdout);
  EXPECT_TRUE((*frames)[0].forward_stderr);
  EXPECT_EQ((*frames)[0].stderr_path, "");
  EXPECT_FALSE((*frames)[1].forward_stdout);
  EXPECT_NE((*frames)[1].stdout_path, "");
}

TEST_F(PrepareWorkersTest, LogDirectoryThatCannotBeMade_IsNamed) {
  options_.output.log_dir = "/proc/none";
  EXPECT_THAT(PrepareWorkers(options_).status().message(), HasSubstr("/proc/none"));
}

TEST_F(PrepareWorkersTest, FileInPlaceOfTheLogDirectory_GivesPathAndErrno) {
  std::ofstream(options_.output.log_dir) << "x";
  DirectoryFailure failure;
  EXPECT_FALSE(PrepareWorkers(options_, &failure).ok());
  EXPECT_EQ(failure.error, ENOTDIR);
  EXPECT_EQ(failure.path, options_.output.log_dir);
}

TEST_F(PrepareWorkersTest, LogDirectoryThatDoesNotAnswer_WorkersDoWithout) {
  DirectoryFailure failure;
  std::set<std::string> asked;
  const auto frames = PrepareWorkers(
      options_, &failure,
      [&](const std::string& log_dir, const std::string& below, int* error) -> absl::Status {
        asked.insert(log_dir + "/" + below);
        *error = ETIMEDOUT;
        return absl::DeadlineExceededError("late");
      });
  ASSERT_OK(frames);
  const std::string generation = options_.output.log_dir + "/mnist/run_5Z/generation_2";
  EXPECT_THAT(asked, ElementsAre(generation + "/rank_4", generation + "/rank_5"));
  EXPECT_EQ(failure.error, ETIMEDOUT);
  EXPECT_EQ(failure.path, options_.output.log_dir);
  EXPECT_EQ((*frames)[1].stdout_path, "");
  EXPECT_THAT((*frames)[1].error_file, HasSubstr(options_.scratch));
  EXPECT_FALSE(std::filesystem::exists(options_.output.log_dir));
}

TEST_F(PrepareWorkersTest, UnknownBinding_IsRefused) {
  options_.environment.workers.bind = "socket";
  EXPECT_THAT(PrepareWorkers(options_), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(PrepareWorkersTest, BindNuma_GivesCpus) {
  options_.environment.workers.bind = "numa";
  const auto frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_FALSE((*frames)[1].cpus.empty());
}

TEST_F(PrepareWorkersTest, FilesThatTheUserNamed_HaveTheNumbersInTheirNames) {
  options_.host = "node7.cluster.org";
  options_.environment.base = {"USER=ann", "CADRE_JOB_ID=17"};
  options_.environment.assign.set_node_rank(1);
  options_.environment.spec.mutable_logs()->set_stdout_file("%x-%j.%s-%t-%n-%N-%u.out");
  options_.environment.spec.mutable_logs()->set_stderr_file("/err/%4t");
  auto frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_EQ((*frames)[1].stdout_file.path, "/data/mnist-17.0-5-1-node7-ann.out");
  EXPECT_EQ((*frames)[1].stderr_file.path, "/err/0005");
  EXPECT_THAT((*frames)[1].stdout_path, HasSubstr("/rank_5/stdout.log"));
  (*options_.environment.spec.mutable_env())["SLURM_JOB_ID"] = "16";
  (*options_.environment.spec.mutable_env())["SLURM_STEP_ID"] = "3";
  (*options_.environment.spec.mutable_env())["SLURM_JOB_NAME"] = "train";
  options_.environment.spec.mutable_logs()->set_stdout_file("%x-%J");
  options_.environment.spec.mutable_logs()->clear_stderr_file();
  frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_EQ((*frames)[0].stdout_file.path, "/data/train-16.3");
  EXPECT_EQ((*frames)[0].stderr_file.path, "/data/train-16.3") << "both streams go there";
  options_.environment.spec.mutable_batch();
  frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_EQ((*frames)[0].stdout_file.path, "/data/train-16");
  (*options_.environment.spec.mutable_env())["SLURM_ARRAY_JOB_ID"] = "12";
  (*options_.environment.spec.mutable_env())["SLURM_ARRAY_TASK_ID"] = "0";
  options_.environment.spec.mutable_logs()->set_stdout_file("%A_%a-%j");
  frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_EQ((*frames)[0].stdout_file.path, "/data/12_0-16");
}

TEST_F(PrepareWorkersTest, FilesThatTheUserNamed_AreNeededWithoutALogDirectory) {
  options_.output.log_dir.clear();
  options_.environment.spec.mutable_logs()->set_stderr_file("err");
  const auto frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_EQ((*frames)[0].stdout_file.path, "");
  EXPECT_EQ((*frames)[0].stderr_file.path, "/data/err");
  EXPECT_EQ((*frames)[0].stderr_path, "");
}

// Which of rank 4 and rank 5, on one node, empties its files: "4o 4e" are both files of rank 4.
std::string WhoEmpties(const WorkerStartOptions& options) {
  const auto frames = PrepareWorkers(options);
  EXPECT_OK(frames);
  std::string all;
  for (uint32_t i = 0; i < frames->size(); ++i) {
    const uint32_t rank = options.environment.assign.first_rank() + i;
    for (const auto& [file, name] :
         {std::pair((*frames)[i].stdout_file, "o"), std::pair((*frames)[i].stderr_file, "e")}) {
      if (file.empty_before_ms == 0) continue;
      EXPECT_EQ(file.empty_before_ms, options.began_unix_ms);
      all += (all.empty() ? "" : " ") + std::to_string(rank) + name;
    }
  }
  return all;
}

TEST_F(PrepareWorkersTest, AFileThatTheUserNamed_IsEmptiedOnceWhenTheJobBegins) {
  options_.began_unix_ms = 1764381600123;
  v1::LogPolicy& logs = *options_.environment.spec.mutable_logs();
  v1::Assign& assign = options_.environment.assign;
  logs.set_stdout_file("all");
  EXPECT_EQ(WhoEmpties(options_), "4o");
  logs.set_stderr_file("errors");
  EXPECT_EQ(WhoEmpties(options_), "4o 4e");
  logs.set_stdout_file("%t");
  EXPECT_EQ(WhoEmpties(options_), "4o 4e 5o");
  assign.set_node_rank(1);
  EXPECT_EQ(WhoEmpties(options_), "4o 5o") << "rank 0's node empties what all nodes share";
  logs.set_stdout_file("%N");
  EXPECT_EQ(WhoEmpties(options_), "4o");
  assign.set_restart_count(1);
  EXPECT_EQ(WhoEmpties(options_), "");
  assign.set_restart_count(0);
  logs.set_append(true);
  EXPECT_EQ(WhoEmpties(options_), "");
}

TEST_F(PrepareWorkersTest, AProcessThatStandsBy_HasNoRank) {
  options_.environment.base = {"RANK=7", "HOME=/home/u"};
  options_.environment.spec.set_command(1, "--fast");
  options_.environment.spec.mutable_logs()->set_stdout_file("%t");
  const auto frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  const auto like = StandbyFor(*frames);
  ASSERT_TRUE(like.has_value());
  EXPECT_TRUE(like->stands_by);
  EXPECT_EQ(like->stdout_file.path, "");
  const supervisor::StartFrame standby = StandbyFrame(*like, 1, "/run/touch");
  const std::string directory = options_.output.log_dir + "/mnist/run_5Z/generation_2/standby_1";
  EXPECT_EQ(standby.stdout_path, directory + "/stdout.log");
  EXPECT_EQ(standby.stderr_path, directory + "/stderr.log");
  EXPECT_EQ(standby.error_file, directory + "/error.json");
  EXPECT_THAT(standby.environment, testing::IsSupersetOf({"CADRE_PROGRESS_FILE=/run/touch",
                                                          "HOME=/home/u", "CADRE_JOB=mnist"}));
  // The variables that it lacks are sent with its assignment.
  std::set<std::string> names;
  for (const std::string& entry : standby.environment) {
    EXPECT_TRUE(names.insert(entry.substr(0, entry.find('='))).second) << entry;
  }
  names.erase("CADRE_PROGRESS_FILE");
  names.erase("TORCHELASTIC_ERROR_FILE");
  const supervisor::StartFrame& second = (*frames)[1];
  for (const std::string& entry : second.assignment) {
    EXPECT_TRUE(names.insert(entry.substr(0, entry.find('='))).second) << entry;
  }
  EXPECT_EQ(names.size(), second.environment.size());
  EXPECT_THAT(second.assignment, testing::IsSupersetOf({"LOCAL_RANK=1", "CADRE_GENERATION=2"}));
}

TEST_F(PrepareWorkersTest, NothingStandsBy_WhereTheLocalRankDecidesHowAProcessStarts) {
  // The arguments differ: --gpu=${local_rank}.
  auto frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_FALSE(StandbyFor(*frames).has_value());
  options_.environment.spec.set_command(1, "--fast");
  options_.environment.workers.gpus_per_worker_own = true;
  frames = PrepareWorkers(options_);
  ASSERT_OK(frames);
  EXPECT_FALSE(StandbyFor(*frames).has_value());
}

// The second of three nodes: ranks 2 to 4 of 7.
WorkerEnvironmentOptions SecondNode() {
  WorkerEnvironmentOptions options;
  options.job = "mnist";
  options.generation = 4;
  options.assign.set_node_rank(1);
  options.assign.set_nodes(3);
  options.assign.set_first_rank(2);
  options.assign.set_local_world_size(3);
  options.assign.set_world_size(7);
  options.assign.set_master_addr("10.0.0.1");
  options.assign.set_master_port(29600);
  options.assign.set_restart_count(2);
  options.assign.set_max_restarts(5);
  options.socket = "/run/a/socket";
  options.token_file = "/run/a/token";
  return options;
}

std::map<std::string, std::string> Environment(const WorkerEnvironmentOptions& options,
                                               uint32_t local_rank) {
  const auto built = BuildWorkerEnvironment(options, local_rank, "/logs/error.json");
  EXPECT_OK(built);
  std::map<std::string, std::string> variables;
  for (const std::string& entry : built.value_or(std::vector<std::string>{})) {
    variables.insert(absl::StrSplit(entry, absl::MaxSplits('=', 1)));
  }
  return variables;
}

TEST(BuildWorkerEnvironment, SecondNode_AllNames) {
  const std::map<std::string, std::string> expected = {
      {"CADRE_AGENT", "/run/a/socket"},
      {"CADRE_CHECKPOINT_FILE", "/run/a/checkpoint.4"},
      {"CADRE_CHECKPOINT_MEMORY", "/run/a/memory"},
      {"CADRE_ENCRYPT", "0"},
      {"CADRE_GENERATION", "4"},
      {"CADRE_JOB", "mnist"},
      {"CADRE_PROGRESS_FILE", "/run/a/progress_4_3.touch"},
      {"CADRE_STACK_FILE", "/run/a/stacks_4_3.txt"},
      {"CADRE_TOKEN_FILE", "/run/a/token"},
      {"GROUP_RANK", "1"},
      {"GROUP_WORLD_SIZE", "3"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "3"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"MASTER_PORT", "29600"},
      {"NODE_RANK", "1"},
      {"OMP_NUM_THREADS", "1"},
      {"RANK", "3"},
      {"ROLE_NAME", "default"},
      {"ROLE_RANK", "3"},
      {"ROLE_WORLD_SIZE", "7"},
      {"TORCHELASTIC_ERROR_FILE", "/logs/error.json"},
      {"TORCHELASTIC_MAX_RESTARTS", "5"},
      {"TORCHELASTIC_RESTART_COUNT", "2"},
      {"TORCHELASTIC_RUN_ID", "mnist"},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"WORLD_SIZE", "7"},
  };
  EXPECT_EQ(Environment(SecondNode(), 1), expected);
}

// The launcher's own numbers are those of the single task of its node.
TEST(BuildWorkerEnvironment, InAJobOfSlurmsItsNumbersAreTheWorkers) {
  WorkerEnvironmentOptions options = SecondNode();
  options.base = {"SLURM_JOB_ID=77", "SLURM_PROCID=1", "SLURM_LOCALID=0", "SLURM_NTASKS=3"};
  const auto environment = Environment(options, 2);
  EXPECT_THAT(environment, Contains(Pair("SLURM_PROCID", "4")));
  EXPECT_THAT(environment, Contains(Pair("SLURM_LOCALID", "2")));
  EXPECT_THAT(environment, Contains(Pair("SLURM_NODEID", "1")));
  EXPECT_THAT(environment, Contains(Pair("SLURM_NTASKS", "7")));
  // Every variable that is set must be listed as one that differs between workers.
  for (const auto& [name, value] : environment) {
    if (name.rfind("SLURM_", 0) == 0) {
      EXPECT_EQ(IsLauncherStyleVariable(name), name != "SLURM_JOB_ID") << name;
    }
  }
  // A value in the job's spec has precedence.
  (*options.spec.mutable_env())["SLURM_PROCID"] = "9";
  EXPECT_THAT(Environment(options, 2), Contains(Pair("SLURM_PROCID", "9")));
  // Outside Slurm none is set.
  EXPECT_THAT(Environment(SecondNode(), 0), Not(Contains(Key("SLURM_PROCID"))));
}

TEST(BuildWorkerEnvironment, TasksOfAStepHaveTheirNumbersAndKeepTheStepsOther) {
  WorkerEnvironmentOptions options = SecondNode();
  options.spec.mutable_slurm_step();
  // As the script had them, and as the cluster's agent set them.
  auto& env = *options.spec.mutable_env();
  env["SLURM_JOB_ID"] = "77";
  env["SLURM_PROCID"] = "0";
  env["SLURM_STEP_TASKS_PER_NODE"] = "2,3,2";
  env["SLURM_JOB_NUM_NODES"] = "4";
  env["SLURM_NNODES"] = "3";
  const auto environment = Environment(options, 1);
  EXPECT_THAT(environment, Contains(Pair("SLURM_PROCID", "3")));
  EXPECT_THAT(environment, Contains(Pair("SLURM_LOCALID", "1")));
  EXPECT_THAT(environment, Contains(Pair("SLURM_NODEID", "1")));
  EXPECT_THAT(environment, Contains(Pair("SLURM_GTIDS", "2,3,4")));
  EXPECT_THAT(environment, Contains(Pair("SLURM_SRUN_COMM_HOST", "10.0.0.1")));
  EXPECT_THAT(environment, Contains(Pair("SLURM_STEP_TASKS_PER_NODE", "2,3,2")));
  EXPECT_THAT(environment, Contains(Pair("SLURM_JOB_NUM_NODES", "4")));
  EXPECT_THAT(environment, Contains(Pair("SLURM_NNODES", "3")));
  EXPECT_THAT(environment, Contains(Pair("RANK", "3")));
  EXPECT_THAT(environment, Contains(Key("CADRE_AGENT")));
}

TEST(BuildWorkerEnvironment, TheScriptOfABatchJobIsNoRank) {
  WorkerEnvironmentOptions options = SecondNode();
  options.spec.mutable_batch();
  options.assign.set_restart_count(0);
  options.base = {"PATH=/bin", "HOME=/home/ann"};
  auto& env = *options.spec.mutable_env();
  env["SLURM_PROCID"] = "0";
  env["CADRE_TOKEN_FILE"] = "/part-1/user-token";
  env["MASTER_PORT"] = "1234";
  const std::map<std::string, std::string> expected = {
      {"PATH", "/bin"},        {"HOME", "/home/ann"},
      {"SLURM_PROCID", "0"},   {"CADRE_TOKEN_FILE", "/part-1/user-token"},
      {"MASTER_PORT", "1234"}, {"TORCHELASTIC_ERROR_FILE", "/logs/error.json"},
  };
  EXPECT_EQ(Environment(options, 0), expected);
  options.assign.set_restart_count(2);
  EXPECT_THAT(Environment(options, 0), Contains(Pair("SLURM_RESTART_COUNT", "2")));
}

TEST(BuildWorkerEnvironment, WhereTheAgentServesPyTorchsStore) {
  WorkerEnvironmentOptions options = SecondNode();
  // Inherited from another job, in a worker of which this launcher was started.
  options.base = {"CADRE_TORCH_STORE=10.0.0.9:1"};
  EXPECT_THAT(Environment(options, 1), Not(Contains(Key("CADRE_TORCH_STORE"))));
  options.agent_store = true;
  EXPECT_THAT(Environment(options, 1), Contains(Pair("CADRE_TORCH_STORE", "10.0.0.1:29600")));
  EXPECT_THAT(Environment(options, 1), Contains(Pair("TORCHELASTIC_USE_AGENT_STORE", "True")));
}

TEST(BuildWorkerEnvironment, TheJobSaysWhetherItsWorkersEncrypt) {
  WorkerEnvironmentOptions options = SecondNode();
  options.base = {"CADRE_ENCRYPT=0"};
  options.spec.set_encrypt(true);
  EXPECT_THAT(Environment(options, 0), Contains(Pair("CADRE_ENCRYPT", "1")));
}

TEST(BuildWorkerEnvironment, InheritedValues_GiveWayOnlyToTheWorkersOwn) {
  WorkerEnvironmentOptions options = SecondNode();
  options.base = {"RANK=99",
                  "SLURM_PROCID=98",
                  "OMP_NUM_THREADS=8",
                  "PATH=/bin",
                  "A=x=y",
                  "TORCH_NCCL_ASYNC_ERROR_HANDLING=3",
                  "broken",
                  "=odd"};
  const auto variables = Environment(options, 0);
  EXPECT_THAT(variables, Contains(Pair("RANK", "2")));
  EXPECT_THAT(variables, Contains(Pair("SLURM_PROCID", "98")));
  EXPECT_THAT(variables, Contains(Pair("OMP_NUM_THREADS", "8")));
  EXPECT_THAT(variables, Contains(Pair("PATH", "/bin")));
  EXPECT_THAT(variables, Contains(Pair("A", "x=y")));
  EXPECT_THAT(variables, Contains(Pair("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")));
  EXPECT_THAT(variables, Not(Contains(Key(""))));
}

TEST(BuildWorkerEnvironment, SpecEnv_WinsOverInherited_NotOverTheWorkersOwn) {
  WorkerEnvironmentOptions options = SecondNode();
  options.base = {"NCCL_DEBUG=INFO"};
  (*options.spec.mutable_env())["NCCL_DEBUG"] = "WARN";
  (*options.spec.mutable_env())["WORLD_SIZE"] = "1";
  options.spec.set_role("trainer");
  const auto variables = Environment(options, 0);
  EXPECT_THAT(variables, Contains(Pair("NCCL_DEBUG", "WARN")));
  EXPECT_THAT(variables, Contains(Pair("WORLD_SIZE", "7")));
  EXPECT_THAT(variables, Contains(Pair("ROLE_NAME", "trainer")));
}

TEST(BuildWorkerEnvironment, NodesOfSeveralRoles_CountWithinTheirOwn) {
  WorkerEnvironmentOptions options = SecondNode();
  options.assign.set_role_first_rank(1);
  options.assign.set_role_world_size(3);
  const auto variables = Environment(options, 1);
  EXPECT_THAT(variables, Contains(Pair("ROLE_RANK", "2")));
  EXPECT_THAT(variables, Contains(Pair("ROLE_WORLD_SIZE", "3")));
  EXPECT_THAT(variables, Contains(Pair("WORLD_SIZE", "7")));
}

TEST(BuildWorkerEnvironment, ARunIdOfTheUsers_IsShownAsItWasWritten) {
  WorkerEnvironmentOptions options = SecondNode();
  options.workers.run_id = "My_Job 1";
  const auto variables = Environment(options, 0);
  EXPECT_THAT(variables, Contains(Pair("TORCHELASTIC_RUN_ID", "My_Job 1")));
  EXPECT_THAT(variables, Contains(Pair("CADRE_JOB", "mnist")));
}

TEST(BuildWorkerEnvironment, WhatItAlwaysSets_IsTheWorkersOwn) {
  WorkerEnvironmentOptions options = SecondNode();
  options.base = {"OMP_NUM_THREADS=2", "TORCH_NCCL_ASYNC_ERROR_HANDLING=3"};
  for (const auto& [name, value] : Environment(options, 0)) {
    const bool inherited = name == "OMP_NUM_THREADS" || name == "TORCH_NCCL_ASYNC_ERROR_HANDLING";
    EXPECT_EQ(IsReservedVariable(name), !inherited) << name << "=" << value;
  }
  EXPECT_TRUE(IsReservedVariable("CADRE_PROGRESS_FD"));
  EXPECT_FALSE(IsReservedVariable("CADRE_CPU_BACKEND"));
}

TEST(BuildWorkerEnvironment, OneWorkerOnTheNode_LeavesThreadsAlone) {
  WorkerEnvironmentOptions options = SecondNode();
  options.assign.set_local_world_size(1);
  EXPECT_THAT(Environment(options, 0), Not(Contains(Key("OMP_NUM_THREADS"))));
}

TEST(BuildWorkerEnvironment, Styles_SpellTheSameNumbers) {
  WorkerEnvironmentOptions options = SecondNode();
  options.workers.env_style = "slurm, mpi";
  options.base = {"SLURM_PROCID=98", "SLURM_STEP_TASKS_PER_NODE=1(x2)"};
  const auto variables = Environment(options, 2);
  EXPECT_THAT(variables, Contains(Pair("SLURM_PROCID", "4")));
  EXPECT_THAT(variables, Contains(Pair("SLURM_LOCALID", "2")));
  EXPECT_THAT(variables, Contains(Pair("SLURM_NTASKS", "7")));
  EXPECT_THAT(variables, Contains(Pair("SLURM_NODEID", "1")));
  EXPECT_THAT(variables, Contains(Pair("SLURM_GTIDS", "2,3,4")));
  EXPECT_THAT(variables, Contains(Pair("SLURM_SRUN_COMM_HOST", variables.at("MASTER_ADDR"))));
  EXPECT_THAT(variables, Not(Contains(Key("SLURM_STEP_TASKS_PER_NODE"))));
  EXPECT_THAT(variables, Contains(Pair("OMPI_COMM_WORLD_RANK", "4")));
  EXPECT_THAT(variables, Contains(Pair("OMPI_COMM_WORLD_SIZE", "7")));
  EXPECT_THAT(variables, Contains(Pair("OMPI_COMM_WORLD_LOCAL_RANK", "2")));
  EXPECT_THAT(variables, Contains(Pair("OMPI_COMM_WORLD_LOCAL_SIZE", "3")));
}

TEST(BuildWorkerEnvironment, UnknownStyle_IsRefusedByName) {
  WorkerEnvironmentOptions options = SecondNode();
  options.workers.env_style = "slurm,lsf";
  EXPECT_THAT(BuildWorkerEnvironment(options, 0, ""),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lsf")));
}

TEST(BuildWorkerEnvironment, OwnGpus_IndexTheVisibleOnes) {
  struct Case {
    const char* inherited;
    uint32_t each;
    uint32_t local_rank;
    const char* expected;
  };
  for (const Case& c :
       {Case{nullptr, 0, 1, "1"}, Case{nullptr, 2, 1, "2,3"}, Case{"4,5,6", 1, 2, "6"},
        Case{"GPU-a, GPU-b", 1, 1, "GPU-b"}, Case{"7,6,5,4", 2, 1, "5,4"}}) {
    WorkerEnvironmentOptions options = SecondNode();
    options.workers.gpus_per_worker_own = true;
    options.spec.mutable_resources()->set_gpus_per_worker(c.each);
    if (c.inherited != nullptr) {
      options.base = {std::string("CUDA_VISIBLE_DEVICES=") + c.inherited};
    }
    const auto variables = Environment(options, c.local_rank);
    EXPECT_THAT(variables, Contains(Pair("CUDA_VISIBLE_DEVICES", c.expected)));
    EXPECT_THAT(variables, Contains(Pair("LOCAL_RANK", std::to_string(c.local_rank))));
  }
}

TEST(BuildWorkerEnvironment, VirtualLocalRank_IsZeroWithOneGpu) {
  WorkerEnvironmentOptions options = SecondNode();
  options.workers.virtual_local_rank = true;
  const auto variables = Environment(options, 2);
  EXPECT_THAT(variables, Contains(Pair("LOCAL_RANK", "0")));
  EXPECT_THAT(variables, Contains(Pair("CUDA_VISIBLE_DEVICES", "2")));
}

TEST(BuildWorkerEnvironment, TooFewVisibleGpus_SaysSo) {
  WorkerEnvironmentOptions options = SecondNode();
  options.workers.gpus_per_worker_own = true;
  options.base = {"CUDA_VISIBLE_DEVICES=3"};
  EXPECT_THAT(BuildWorkerEnvironment(options, 1, ""),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("names only 1")));
}

TEST(BuildWorkerArguments, Macro_IsSubstitutedEverywhere) {
  v1::JobSpec spec;
  for (const char* word : {"train", "--device=${local_rank}", "${local_rank}${local_rank}", "$x"}) {
    spec.add_command(word);
  }
  EXPECT_THAT(BuildWorkerArguments(spec, 3), ElementsAre("train", "--device=3", "33", "$x"));
  spec.mutable_slurm_step();
  EXPECT_EQ(BuildWorkerArguments(spec, 3)[1], "--device=${local_rank}");
}

}  // namespace
}  // namespace cadre::agent
