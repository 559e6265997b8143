#include "agent/workers/standbys.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

supervisor::StartFrame Worker() {
  supervisor::StartFrame frame;
  frame.argv = {"./train"};
  frame.error_file = "/logs/j/generation_3/rank_4/error.json";
  frame.stands_by = true;
  return frame;
}

class StandbysTest : public ::testing::Test {
 protected:
  std::vector<supervisor::StartFrame> Start(absl::Duration after) {
    return standbys_.Start(MonoTime::FromMicros(0) + after, "/pages", [this] { return ++group_; });
  }

  uint64_t group_ = 10;
  Standbys standbys_;
};

TEST_F(StandbysTest, StartOnceSomeTimeAfterTheWorkers) {
  EXPECT_THAT(Start(absl::ZeroDuration()), IsEmpty());
  standbys_.Begin(Worker(), 2, 4);
  EXPECT_THAT(Start(absl::Seconds(1)), IsEmpty());
  EXPECT_THAT(Start(absl::Seconds(2)), IsEmpty());
  const auto frames = Start(absl::Seconds(1) + kStandbyDelay);
  ASSERT_THAT(frames, SizeIs(2));
  EXPECT_EQ(frames[0].group, 11u);
  EXPECT_EQ(frames[0].error_file, "/logs/j/generation_3/standby_4/error.json");
  EXPECT_EQ(frames[1].error_file, "/logs/j/generation_3/standby_5/error.json");
  EXPECT_THAT(Start(absl::Hours(1)), IsEmpty());
}

TEST_F(StandbysTest, NoneOnceTheGenerationIsOver) {
  standbys_.Begin(Worker(), 1, 0);
  EXPECT_THAT(Start(absl::ZeroDuration()), IsEmpty());
  standbys_.End();
  EXPECT_THAT(Start(absl::Hours(1)), IsEmpty());
}

TEST_F(StandbysTest, NoneWhereWorkersDiffer) {
  standbys_.Begin(std::nullopt, 1, 0);
  Start(absl::ZeroDuration());
  EXPECT_THAT(Start(absl::Hours(1)), IsEmpty());
}

TEST_F(StandbysTest, TheNextGenerationReplacesWhatIsMissing) {
  standbys_.Begin(Worker(), 2, 0);
  Start(absl::ZeroDuration());
  ASSERT_THAT(Start(kStandbyDelay), SizeIs(2));
  EXPECT_FALSE(standbys_.Remove(9).has_value());
  const auto taken = standbys_.Remove(11);
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->progress_file, "/pages/standby-11");
  EXPECT_EQ(taken->directory, "/logs/j/generation_3/standby_0");
  EXPECT_FALSE(standbys_.Remove(11).has_value());
  standbys_.Begin(Worker(), 2, 0);
  Start(absl::Seconds(10));
  EXPECT_THAT(Start(absl::Seconds(10) + kStandbyDelay), SizeIs(1));
  standbys_.Clear();
  EXPECT_FALSE(standbys_.Remove(12).has_value());
}

TEST(StandbysWantedTest, OneInPlace_ElseAsManyAsWorkers) {
  v1::RestartPolicy restart;
  EXPECT_EQ(StandbysWanted(restart, {}, absl::ZeroDuration(), 4), 0u);
  restart.set_in_place(true);
  EXPECT_EQ(StandbysWanted(restart, {}, absl::ZeroDuration(), 4), 1u);
  restart.set_standby(false);
  EXPECT_EQ(StandbysWanted(restart, {}, absl::ZeroDuration(), 4), 0u);
  restart.set_in_place(false);
  restart.set_standby(true);
  EXPECT_EQ(StandbysWanted(restart, {}, absl::ZeroDuration(), 4), 4u);
  EXPECT_EQ(StandbysWanted(restart, {}, absl::Seconds(1), 4), 0u);
  WorkerOptions slurm;
  slurm.env_style = "slurm";
  EXPECT_EQ(StandbysWanted(restart, slurm, absl::ZeroDuration(), 4), 0u);
}

TEST(StandbyEndedTest, SaysHowAndWhereItsLogsAre) {
  supervisor::ExitedFrame exited;
  exited.signal = 11;
  const Standby standby = {"/pages/standby-1", "/logs"};
  EXPECT_THAT(StandbyEnded(standby, exited, true),
              HasSubstr("by signal 11 (SIGSEGV); its logs are in /logs;"));
  exited.signal = 0;
  exited.exit_code = 3;
  EXPECT_THAT(StandbyEnded(standby, exited, false),
              HasSubstr("with status 3; --set restart.standby=false"));
}

}  // namespace
}  // namespace cadre::agent
