#include "worker_runtime/environment/plain_environment.h"

#include <map>
#include <variant>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::environment {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace cadre::environment
