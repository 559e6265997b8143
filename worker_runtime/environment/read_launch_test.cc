#include "worker_runtime/environment/read_launch.h"

#include <map>
#include <variant>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::environment {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ReadLaunchTest : public ::testing::Test {
 protected:
  GetVariable Get() {
    return [this](const char* name) -> const char* {
      const auto found = variables_.find(name);
      return found == variables_.end() ? nullptr : found->second.c_str();
    };
  }
  Result<Launch> Read() { return ReadLaunch(Get()); }

  void UnderMpi() {
    variables_ = {{"OMPI_COMM_WORLD_RANK", "1"},
                  {"OMPI_COMM_WORLD_SIZE", "2"},
                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                  {"PMIX_NAMESPACE", "42"}};
  }
  void Plain(const std::string& rank, const std::string& size) {
    variables_["RANK"] = rank;
    variables_["WORLD_SIZE"] = size;
    variables_["MASTER_ADDR"] = "127.0.0.1";
    variables_["MASTER_PORT"] = "29500";
  }

  std::map<std::string, std::string> variables_;
};

TEST_F(ReadLaunchTest, NobodyIsNotAWorldOfOne) {
  EXPECT_THAT(Read(), StatusIs(StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("cadre run --nproc-per-node N PROGRAM"),
                                     HasSubstr("RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"),
                                     HasSubstr("Spawn()"))));
  EXPECT_EQ(DescribeRankSource(Get()), "");
  variables_["PMI_RANK"] = "0";
  EXPECT_THAT(Read(), StatusIs(StatusCode::kFailedPrecondition,
                               HasSubstr("mpirun ... cadre run -- PROGRAM")));
}

TEST_F(ReadLaunchTest, Mpirun) {
  UnderMpi();
  const auto launch = Read();
  ASSERT_OK(launch);
  EXPECT_EQ(launch->launcher, "mpirun");
  EXPECT_TRUE(std::holds_alternative<ThroughFile>(launch->meeting));
  EXPECT_EQ(DescribeRankSource(Get()), "mpirun (OMPI_COMM_WORLD_RANK=1)");
}

TEST_F(ReadLaunchTest, MpirunWithTheSameRankInTheOtherVariables) {
  UnderMpi();
  Plain("1", "2");
  const auto launch = Read();
  ASSERT_OK(launch);
  EXPECT_EQ(launch->launcher, "mpirun");
  Plain("0", "2");
  EXPECT_THAT(Read(),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("RANK is 0"), HasSubstr("OMPI_COMM_WORLD_RANK is 1"))));
}

TEST_F(ReadLaunchTest, WhatMpirunStartedStartsTheRanks) {
  UnderMpi();
  Plain("5", "8");
  auto launch = Read();
  ASSERT_OK(launch);
  EXPECT_EQ(launch->launcher, "the environment");
  EXPECT_EQ(launch->rank, 5);
  // One torchrun per node, on as many nodes as each has ranks.
  Plain("0", "2");
  variables_["TORCHELASTIC_RUN_ID"] = "run";
  launch = Read();
  ASSERT_OK(launch);
  EXPECT_EQ(launch->launcher, "torchrun");
  EXPECT_EQ(launch->rank, 0);
  EXPECT_EQ(DescribeRankSource(Get()), "torchrun (RANK=0)");
}

TEST_F(ReadLaunchTest, ManyRanksNeedTheLauncher) {
  Plain("0", "1024");
  EXPECT_OK(Read());
  Plain("0", "1025");
  EXPECT_THAT(Read(), StatusIs(StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("1025"), HasSubstr("cadre run"))));
  UnderMpi();
  variables_["OMPI_COMM_WORLD_SIZE"] = variables_["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1025";
  EXPECT_THAT(Read(), StatusIs(StatusCode::kFailedPrecondition, HasSubstr("1025")));
}

TEST_F(ReadLaunchTest, DescribeRankSource) {
  Plain("1", "2");
  EXPECT_EQ(DescribeRankSource(Get()), "the environment (RANK=1)");
  variables_["CADRE_AGENT"] = "/socket";
  EXPECT_EQ(DescribeRankSource(Get()), "Cadre's agent (RANK=1)");
  variables_ = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}};
  EXPECT_EQ(DescribeRankSource(Get()), "srun (SLURM_PROCID=0)");
  // An interactive shell.
  variables_["SLURM_NTASKS"] = "1";
  EXPECT_EQ(DescribeRankSource(Get()), "");
  // A variable that a shell may have set long ago.
  variables_ = {{"MASTER_ADDR", "head"}};
  EXPECT_EQ(DescribeRankSource(Get()), "");
}

TEST(LaunchAtTest, WhoSaysItAllItself) {
  auto launch = LaunchAt(1, 2, "[fe80::1]:80");
  ASSERT_OK(launch);
  EXPECT_EQ(std::get<AtAddress>(launch->meeting).host, "fe80::1");
  EXPECT_EQ(std::get<AtAddress>(launch->meeting).port, 80);
  for (const char* address : {"", "head", "head:", ":80", "head:0", "head:65536", "head:http"}) {
    EXPECT_THAT(LaunchAt(0, 1, address),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("HOST:PORT")))
        << address;
  }
  for (const auto& [rank, size] : std::map<int, int>{{-1, 2}, {2, 2}, {0, 0}}) {
    EXPECT_THAT(LaunchAt(rank, size, "h:1"), StatusIs(StatusCode::kInvalidArgument));
  }
}

class MpiEnvironmentTest : public ::testing::Test {
 protected:
  GetVariable Get() {
    return [this](const char* name) -> const char* {
      const auto found = variables_.find(name);
      return found == variables_.end() ? nullptr : found->second.c_str();
    };
  }
  Result<Launch> Read() { return ReadMpiEnvironment(Get()); }

  // The variables of the third of four processes on two nodes, as set by Open MPI 4.1.
  std::map<std::string, std::string> variables_ = {
      {"OMPI_COMM_WORLD_RANK", "2"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"PMIX_NAMESPACE", "425263105"},
      {"OMPI_MCA_orte_local_daemon_uri",
       "425263104.1;tcp://10.77.0.2,10.1.0.2:41357;tcp6://[fe80::1]:4321"}};
};

TEST_F(MpiEnvironmentTest, ReadsWhatMpirunSays) {
  ASSERT_TRUE(StartedByMpi(Get()));
  const auto mpi = Read();
  ASSERT_OK(mpi);
  EXPECT_EQ(mpi->name, "mpi-425263105");
  EXPECT_EQ(std::get<ThroughFile>(mpi->meeting).name, "mpi-425263105");
  EXPECT_EQ(mpi->rank, 2);
  EXPECT_EQ(mpi->world_size, 4);
  EXPECT_EQ(mpi->local_rank, 0);
  EXPECT_EQ(mpi->local_world_size, 2);
  EXPECT_EQ(std::get<ThroughFile>(mpi->meeting).address, "10.77.0.2");
  EXPECT_EQ(mpi->one_node, false);
  variables_.erase("OMPI_COMM_WORLD_RANK");
  EXPECT_FALSE(StartedByMpi(Get()));
}

TEST_F(MpiEnvironmentTest, OneNodeNeedsNoAddress) {
  variables_["OMPI_COMM_WORLD_SIZE"] = "3";
  variables_["OMPI_COMM_WORLD_LOCAL_SIZE"] = "3";
  variables_.erase("OMPI_MCA_orte_local_daemon_uri");
  const auto mpi = Read();
  ASSERT_OK(mpi);
  EXPECT_EQ(mpi->one_node, true);
  EXPECT_EQ(std::get<ThroughFile>(mpi->meeting).address, "127.0.0.1");
}

TEST_F(MpiEnvironmentTest, SeveralNodesNeedOne) {
  for (const char* uri : {"", "425263104.1;tcp6://[fe80::1]:4321"}) {
    variables_["OMPI_MCA_orte_local_daemon_uri"] = uri;
    EXPECT_THAT(Read(), StatusIs(StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("address"), HasSubstr("cadre run"))));
  }
}

TEST_F(MpiEnvironmentTest, TheLaunchIsAFilesName) {
  variables_["PMIX_NAMESPACE"] = "../prterun-host@1/x y";
  const auto mpi = Read();
  ASSERT_OK(mpi);
  EXPECT_EQ(mpi->name, "mpi-.._prterun-host@1_x_y");
  variables_.erase("PMIX_NAMESPACE");
  EXPECT_THAT(Read(), StatusIs(StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("PMIX_NAMESPACE"), HasSubstr("cadre run"))));
}

TEST_F(MpiEnvironmentTest, NamesWhatMakesNoSense) {
  variables_["OMPI_COMM_WORLD_SIZE"] = "many";
  EXPECT_THAT(Read(), StatusIs(StatusCode::kInvalidArgument,
                               HasSubstr("OMPI_COMM_WORLD_SIZE is \"many\"")));
  variables_["OMPI_COMM_WORLD_SIZE"] = "2";
  EXPECT_THAT(Read(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("contradict each other")));
  variables_.erase("OMPI_COMM_WORLD_SIZE");
  EXPECT_THAT(Read(), StatusIs(StatusCode::kFailedPrecondition,
                               HasSubstr("OMPI_COMM_WORLD_SIZE is not set")));
}

using Variables = std::map<std::string, std::string>;

Result<std::optional<Launch>> Read(const Variables& variables) {
  return ReadPlainEnvironment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

const Variables kPlain = {
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "29500"}};

const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "h"},
                             {"MASTER_PORT", "40001"},
                             {"GROUP_RANK", "1"},
                             {"TORCHELASTIC_RUN_ID", "run"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

const Variables kStep = {{"SLURM_PROCID", "1"},        {"SLURM_NTASKS", "2"},
                         {"SLURM_LOCALID", "1"},       {"SLURM_NNODES", "1"},
                         {"SLURM_JOB_ID", "7"},        {"SLURM_STEP_ID", "0"},
                         {"SLURM_STEP_NODELIST", "n1"}};

TEST(PlainEnvironmentTest, NothingIsSet) {
  const auto launch = Read({{"PATH", "/bin"}, {"LOCAL_RANK", "0"}});
  ASSERT_OK(launch);
  EXPECT_FALSE(launch->has_value());
}

TEST(PlainEnvironmentTest, FourVariablesAreEnough) {
  const auto launch = Read(kPlain);
  ASSERT_OK(launch);
  ASSERT_TRUE(launch->has_value());
  EXPECT_EQ((*launch)->rank, 1);
  EXPECT_EQ((*launch)->world_size, 2);
  EXPECT_EQ((*launch)->local_rank, std::nullopt);
  EXPECT_EQ((*launch)->one_node, std::nullopt);
  const auto& at = std::get<AtAddress>((*launch)->meeting);
  EXPECT_EQ(at.host, "head");
  EXPECT_EQ(at.port, 29500);
}

TEST(PlainEnvironmentTest, SaysWhichAreMissing) {
  for (const auto& [name, value] : kPlain) {
    Variables variables = kPlain;
    variables.erase(name);
    EXPECT_THAT(Read(variables), StatusIs(StatusCode::kFailedPrecondition,
                                          HasSubstr(" are set, but " + name + " is not")));
  }
  EXPECT_THAT(Read({{"MASTER_ADDR", "h"}}),
              StatusIs(StatusCode::kFailedPrecondition,
                       HasSubstr("MASTER_ADDR is set, but RANK, WORLD_SIZE, MASTER_PORT are not")));
}

TEST(PlainEnvironmentTest, WhatContradictsIsNamedWithItsValues) {
  const auto expect = [](const Variables& variables, const char* one, const char* other) {
    EXPECT_THAT(Read(variables),
                StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr(one), HasSubstr(other))));
  };
  expect(With(kPlain, {{"RANK", "2"}}), "RANK is 2", "WORLD_SIZE is 2");
  expect(With(kPlain, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "1"}}), "LOCAL_RANK is 1",
         "LOCAL_WORLD_SIZE is 1");
  expect(With(kPlain, {{"LOCAL_RANK", "2"}}), "LOCAL_RANK is 2", "WORLD_SIZE is 2");
  expect(With(kPlain, {{"LOCAL_WORLD_SIZE", "3"}}), "LOCAL_WORLD_SIZE is 3", "WORLD_SIZE is 2");
  expect(With(kStep, {{"WORLD_SIZE", "4"}}), "WORLD_SIZE is 4", "SLURM_NTASKS is 2");
  expect(With(kStep, {{"RANK", "0"}}), "RANK is 0", "SLURM_PROCID is 1");
  expect(With(kStep, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}), "RANK is 0", "SLURM_PROCID is 1");
}

TEST(PlainEnvironmentTest, WhatIsNoNumberIsNamed) {
  EXPECT_THAT(Read(With(kPlain, {{"WORLD_SIZE", "two"}})),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("WORLD_SIZE is \"two\"")));
  for (const char* port : {"0", "65536"}) {
    EXPECT_THAT(Read(With(kPlain, {{"MASTER_PORT", port}})),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("MASTER_PORT is ")));
  }
}

TEST(PlainEnvironmentTest, TorchrunsStoreIsTheMeetingWhereItServesOne) {
  auto launch = Read(kTorchrun);
  ASSERT_OK(launch);
  EXPECT_EQ((*launch)->launcher, "torchrun");
  EXPECT_EQ((*launch)->name, "run");
  EXPECT_EQ((*launch)->local_rank, 1);
  EXPECT_EQ((*launch)->local_world_size, 2);
  EXPECT_EQ((*launch)->one_node, false);
  EXPECT_EQ((*launch)->restart_count, 2);
  const auto& through = std::get<ThroughTorchrun>((*launch)->meeting);
  EXPECT_EQ(through.host, "h");
  EXPECT_EQ(through.port, 40001);
  EXPECT_EQ(through.key, "/cadre/run/2/store");

  launch = Read(With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}));
  ASSERT_OK(launch);
  EXPECT_EQ(std::get<AtAddress>((*launch)->meeting).port, 40001);
}

TEST(PlainEnvironmentTest, UnderTorchrunSlurmCountsNodes) {
  const auto launch = Read(With(kStep, kTorchrun));
  ASSERT_OK(launch);
  EXPECT_EQ((*launch)->rank, 3);
  EXPECT_EQ((*launch)->world_size, 4);
}

TEST(PlainEnvironmentTest, SlurmsStepAloneIsEnough) {
  const auto launch = Read(kStep);
  ASSERT_OK(launch);
  ASSERT_TRUE(launch->has_value());
  EXPECT_EQ((*launch)->launcher, "srun");
  EXPECT_EQ((*launch)->rank, 1);
  EXPECT_EQ((*launch)->world_size, 2);
  EXPECT_EQ((*launch)->local_rank, 1);
  EXPECT_EQ((*launch)->one_node, true);
  const auto& at = std::get<AtAddress>((*launch)->meeting);
  EXPECT_EQ(at.host, "127.0.0.1");
  EXPECT_EQ(at.port, 15007);
}

TEST(PlainEnvironmentTest, WhatAScriptExportsWinsOverSlurm) {
  const auto launch =
      Read(With(kStep, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "5"}, {"LOCAL_RANK", "0"}}));
  ASSERT_OK(launch);
  EXPECT_EQ((*launch)->rank, 1);
  EXPECT_EQ((*launch)->local_rank, 0);
  EXPECT_EQ(std::get<AtAddress>((*launch)->meeting).host, "head");
}

// Each task starts several ranks.
TEST(PlainEnvironmentTest, AnotherWorldThanSlurmsIsBelievedWhole) {
  const auto launch = Read(With(kStep, With(kPlain, {{"WORLD_SIZE", "8"}, {"RANK", "5"}})));
  ASSERT_OK(launch);
  EXPECT_EQ((*launch)->rank, 5);
  EXPECT_EQ((*launch)->world_size, 8);
  EXPECT_EQ((*launch)->local_rank, std::nullopt);
}

class SlurmStepTest : public ::testing::Test {
 protected:
  Result<std::optional<SlurmStep>> Read() {
    return ReadSlurmStep([this](const char* name) -> const char* {
      const auto found = variables_.find(name);
      return found == variables_.end() ? nullptr : found->second.c_str();
    });
  }

  // The variables of the fourth of four tasks on two nodes.
  std::map<std::string, std::string> variables_ = {{"SLURM_PROCID", "3"},
                                                   {"SLURM_NTASKS", "4"},
                                                   {"SLURM_LOCALID", "1"},
                                                   {"SLURM_NNODES", "2"},
                                                   {"SLURM_JOB_ID", "123456"},
                                                   {"SLURM_STEP_ID", "2"},
                                                   {"SLURM_NODEID", "1"},
                                                   {"SLURM_STEP_NODELIST", "n[08-09]"},
                                                   {"SLURM_JOB_NODELIST", "n[07-09]"}};
};

TEST_F(SlurmStepTest, ATaskOfAStep) {
  const auto step = Read();
  ASSERT_OK(step);
  ASSERT_TRUE(step->has_value());
  EXPECT_EQ((*step)->rank, 3);
  EXPECT_EQ((*step)->tasks, 4);
  EXPECT_EQ((*step)->local_rank, 1);
  EXPECT_EQ((*step)->nodes, 2);
  EXPECT_EQ((*step)->first_host, "n08");
  EXPECT_EQ((*step)->name, "slurm-123456.2");
  EXPECT_EQ((*step)->port, 15000 + 3456 + 202);
}

TEST_F(SlurmStepTest, TheStepsOwnNumbersComeFirst) {
  variables_["SLURM_STEP_NUM_TASKS"] = "8";
  variables_["SLURM_STEP_NUM_NODES"] = "1";
  const auto step = Read();
  ASSERT_OK(step);
  EXPECT_EQ((*step)->tasks, 8);
  EXPECT_STREQ((*step)->tasks_variable, "SLURM_STEP_NUM_TASKS");
  EXPECT_EQ((*step)->first_host, "127.0.0.1");
}

TEST_F(SlurmStepTest, EveryStepOfAJobHasItsOwnPort_BelowThatOfOtherPrograms) {
  variables_["SLURM_JOB_ID"] = "9999";
  for (const char* step : {"0", "1", "4294967290"}) {
    variables_["SLURM_STEP_ID"] = step;
    const auto read = Read();
    ASSERT_OK(read);
    EXPECT_GE((*read)->port, 15000) << step;
    EXPECT_LT((*read)->port, 25000) << step;
  }
}

TEST_F(SlurmStepTest, ABatchScriptIsNoTask) {
  variables_.erase("SLURM_STEP_ID");
  variables_.erase("SLURM_STEP_NODELIST");
  const auto step = Read();
  ASSERT_OK(step);
  EXPECT_FALSE(step->has_value());
}

TEST_F(SlurmStepTest, NamesWhatIsNoNumber) {
  variables_["SLURM_PROCID"] = "first";
  EXPECT_THAT(Read(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("SLURM_PROCID is \"first\"")));
}

TEST(FirstHostTest, OfSlurmsLists) {
  const std::map<std::string, std::string> kFirst = {
      {"", ""},         {"n1", "n1"},           {"n1,n2", "n1"},          {"n[01-03,07],g1", "n01"},
      {"n[3,5]", "n3"}, {"a-b[2]c,d", "a-b2c"}, {"r[1-2]n[4-5]", "r1n4"}, {"n[7", "n7"}};
  for (const auto& [list, first] : kFirst) EXPECT_EQ(FirstHost(list), first) << list;
}

}  // namespace

}  // namespace cadre::environment
