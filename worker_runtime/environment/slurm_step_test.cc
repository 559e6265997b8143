#include "worker_runtime/environment/slurm_step.h"

#include <map>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::environment {
namespace {

using ::testing::HasSubstr;

class SlurmStepTest : public ::testing::Test {
 protected:
  Result<std::optional<SlurmStep>> Read() {
    return ReadSlurmStep([this](const char* name) -> const char* {
      const auto found = variables_.find(name);
      return found == variables_.end() ? nullptr : found->second.c_str();
    });
  }

  // Of the fourth of four tasks on two nodes.
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
