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
  EXPECT_EQ(WhoGaveARank(Get()), "");
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
  EXPECT_EQ(WhoGaveARank(Get()), "mpirun (OMPI_COMM_WORLD_RANK=1)");
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
  // torchrun, one a node, on as many nodes as it has ranks on each.
  Plain("0", "2");
  variables_["TORCHELASTIC_RUN_ID"] = "run";
  launch = Read();
  ASSERT_OK(launch);
  EXPECT_EQ(launch->launcher, "torchrun");
  EXPECT_EQ(launch->rank, 0);
  EXPECT_EQ(WhoGaveARank(Get()), "torchrun (RANK=0)");
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

TEST_F(ReadLaunchTest, WhoGaveARank) {
  Plain("1", "2");
  EXPECT_EQ(WhoGaveARank(Get()), "the environment (RANK=1)");
  variables_["CADRE_AGENT"] = "/socket";
  EXPECT_EQ(WhoGaveARank(Get()), "Cadre's agent (RANK=1)");
  variables_ = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}};
  EXPECT_EQ(WhoGaveARank(Get()), "srun (SLURM_PROCID=0)");
  // An interactive shell.
  variables_["SLURM_NTASKS"] = "1";
  EXPECT_EQ(WhoGaveARank(Get()), "");
  // What a shell may have set long ago.
  variables_ = {{"MASTER_ADDR", "head"}};
  EXPECT_EQ(WhoGaveARank(Get()), "");
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

}  // namespace
}  // namespace cadre::environment
