#include "rpc/job_progress.h"

#include <string>

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
    return StallText(progress);
  };
  EXPECT_EQ(quiet(25700, 1000), "no step for 25s");
  EXPECT_EQ(quiet(4999, 0), "");
  EXPECT_EQ(quiet(5000, 0), "no step for 5s");
  EXPECT_EQ(quiet(89999, 30000), "");
  EXPECT_EQ(quiet(90000, 30000), "no step for 1m30s");
}

TEST(FiguresTest, Names) {
  for (const char* name : {"lr", "eval/acc", "grad_norm.2"})
    EXPECT_TRUE(IsFigureName(name)) << name;
  for (const char* name : {"", "9x", "a-b", "a b", "_", "<img>", "step", "total", "loss",
                           "samples_per_second", "caf\xc3\xa9"}) {
    EXPECT_FALSE(IsFigureName(name)) << name;
  }
  EXPECT_TRUE(IsFigureName(std::string(kMaxFigureName, 'a')));
  EXPECT_FALSE(IsFigureName(std::string(kMaxFigureName + 1, 'a')));
}

// Fault (display): A program or node reports metrics with invalid or overlong names, or new names
// all the time -> The first 16 with valid names are taken
TEST(FiguresTest, OfAPeerThatSendsManyAndBadOnes_TheFirstGoodOnesAreTaken) {
  Figures sent;
  for (int i = 0; i < 3 * kMaxFigures; ++i) {
    v1::Figure* figure = sent.Add();
    figure->set_name("m" + std::to_string(i));
    figure->set_value(i);
    sent.Add()->set_name("<script>");
  }
  *sent.Add() = v1::Figure(sent[0]);
  sent[sent.size() - 1].set_value(7);
  const Figures checked = CheckedFigures(sent);
  ASSERT_EQ(checked.size(), kMaxFigures);
  EXPECT_EQ(checked[0].value(), 7);
  EXPECT_EQ(checked[kMaxFigures - 1].name(), "m" + std::to_string(kMaxFigures - 1));
}

}  // namespace

}  // namespace cadre::rpc
