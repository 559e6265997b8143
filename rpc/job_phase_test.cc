#include "rpc/job_phase.h"

#include "gtest/gtest.h"

namespace cadre::rpc {
namespace {

TEST(JobPhaseTest, EveryPhaseIsOneWord) {
  EXPECT_EQ(PhaseName(v1::JOB_PHASE_UNSPECIFIED), "starting");
  EXPECT_EQ(PhaseName(v1::QUEUED), "queued");
  EXPECT_EQ(PhaseName(v1::RUNNING), "running");
  EXPECT_EQ(PhaseName(v1::CANCELLED_PHASE), "cancelled");
}

}  // namespace
}  // namespace cadre::rpc
