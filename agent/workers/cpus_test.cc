#include "agent/workers/cpus.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two NUMA nodes of four cores with two hyperthreads each.
std::vector<CpuCore> TwoSockets() {
  const auto cores = FindCores("numa:2 core:4 pu:2");
  EXPECT_OK(cores);
  return cores.value_or(std::vector<CpuCore>{});
}

TEST(FindCores, Synthetic_CountsCoresAndKnowsTheirNumaNodes) {
  const std::vector<CpuCore> cores = TwoSockets();
  ASSERT_EQ(cores.size(), 8u);
  EXPECT_THAT(cores[5].cpus, ElementsAre(10, 11));
  EXPECT_EQ(cores[3].numa, 0u);
  EXPECT_EQ(cores[4].numa, 1u);
}

TEST(FindCores, ThisMachine_HasAtLeastOne) {
  const auto cores = FindCores();
  ASSERT_OK(cores);
  EXPECT_FALSE(cores->empty());
}

TEST(FindCores, DescriptionThatIsNone_IsRefused) {
  EXPECT_THAT(FindCores("core:zero"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(PlanBinding, None_BindsNobody) {
  const auto plan = PlanBinding("none", 2, {});
  ASSERT_OK(plan);
  EXPECT_THAT(*plan, ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(PlanBinding, Core_SharesNoCore) {
  const auto plan = PlanBinding("core", 3, TwoSockets());
  ASSERT_OK(plan);
  EXPECT_THAT(*plan, ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7),
                                 ElementsAre(8, 9, 10, 11)));
}

TEST(PlanBinding, Core_MoreWorkersThanCores_SaysBothNumbers) {
  EXPECT_THAT(PlanBinding("core", 9, TwoSockets()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("9 workers, but only 8")));
}

TEST(PlanBinding, Numa_WorkersShareWholeNodesInBlocks) {
  const auto plan = PlanBinding("numa", 4, TwoSockets());
  ASSERT_OK(plan);
  ASSERT_EQ(plan->size(), 4u);
  EXPECT_THAT((*plan)[0], ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ((*plan)[0], (*plan)[1]);
  EXPECT_THAT((*plan)[2], ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_EQ((*plan)[2], (*plan)[3]);
}

TEST(PlanBinding, Gpu_TakesTheCpusNextToIt) {
  const auto plan = PlanBinding("gpu", 2, {}, {{4, 5}, {6, 7}});
  ASSERT_OK(plan);
  EXPECT_THAT(*plan, ElementsAre(ElementsAre(4, 5), ElementsAre(6, 7)));
}

TEST(PlanBinding, UnknownWord_IsRefusedByName) {
  EXPECT_THAT(PlanBinding("socket", 1, TwoSockets()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("socket")));
}

}  // namespace
}  // namespace cadre::agent
