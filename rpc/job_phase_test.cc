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

TEST(QuietTextTest, AfterSeveralTimesTheUsualTimeOfAStep) {
  const auto quiet = [](int64_t quiet_ms, int64_t usual_ms) {
    v1::JobProgress progress;
    progress.set_quiet_us(quiet_ms * 1000);
    progress.set_usual_us(usual_ms * 1000);
    return QuietText(progress);
  };
  EXPECT_EQ(quiet(25700, 1000), "no step for 25s");
  EXPECT_EQ(quiet(4999, 0), "");
  EXPECT_EQ(quiet(5000, 0), "no step for 5s");
  EXPECT_EQ(quiet(89999, 30000), "");
  EXPECT_EQ(quiet(90000, 30000), "no step for 1m30s");
}

}  // namespace
}  // namespace cadre::rpc
