#include "rpc/job_phase.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::rpc {
namespace {

using ::testing::MatchesRegex;

TEST(JobPhaseTest, EveryPhaseIsOneWord) {
  for (int phase = v1::JobPhase_MIN; phase <= v1::JobPhase_MAX; ++phase) {
    EXPECT_THAT(PhaseName(static_cast<v1::JobPhase>(phase)), MatchesRegex("[a-z]+"));
  }
  EXPECT_EQ(PhaseName(v1::JOB_PHASE_UNSPECIFIED), "starting");
  EXPECT_EQ(PhaseName(v1::QUEUED), "queued");
  EXPECT_EQ(PhaseName(v1::RUNNING), "running");
  EXPECT_EQ(PhaseName(v1::CANCELLED_PHASE), "cancelled");
}

}  // namespace
}  // namespace cadre::rpc
