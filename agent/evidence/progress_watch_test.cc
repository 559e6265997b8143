#include "agent/evidence/progress_watch.h"

#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>

#include "agent/run_files.h"
#include "base/clock.h"
#include "base/progress_snapshot.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/job_progress.h"
#include "worker_runtime/progress/progress_page.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kDrainTimeout = absl::Seconds(60);

// The events as text.
std::vector<std::string> Words(const std::vector<AgentEvent>& events) {
  std::vector<std::string> words;
  for (const AgentEvent& event : events) {
    if (const auto* progress = std::get_if<WorkerProgress>(&event)) {
      words.push_back("step " + std::to_string(progress->progress.step()));
    } else if (std::holds_alternative<WorkerAlive>(event)) {
      words.push_back("alive");
    } else if (std::holds_alternative<WorkerWrote>(event)) {
      words.push_back("wrote");
    }
  }
  return words;
}

class ProgressWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    log_ = directory_ + "/stdout.log";
    std::ofstream(log_) << "an earlier run\n";
    watch_.Start(directory_, 7,
                 {{0, 4, {log_}, ProgressFilePath(directory_, 7, 4)}, {1, 5, {}, ""}});
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  // Polls for the result of a reading of log files that the poll before started.
  std::vector<AgentEvent> PollOnceLooked(MonoTime now) {
    EXPECT_TRUE(files_.Drain(kDrainTimeout));
    return watch_.Poll(now);
  }

  std::string directory_ = ::testing::TempDir() + "/watch_XXXXXX";
  std::string log_;
  FileThread files_{{}};
  ProgressWatch watch_{files_};
};

TEST_F(ProgressWatchTest, Lines_AStepOrASignOfLife) {
  const MonoTime now = MonoNow();
  EXPECT_THAT(Words(watch_.OnLine(0, "step=3 loss=0.5", now)), ElementsAre("step 3"));
  EXPECT_THAT(Words(watch_.OnLine(0, "loss=0.4", now)), ElementsAre("step 3", "alive"));
  EXPECT_THAT(Words(watch_.OnLine(0, "", now)), ElementsAre("alive"));
  EXPECT_THAT(watch_.OnLine(9, "step=3", now), IsEmpty());
  ASSERT_THAT(watch_.Newest(), SizeIs(1));
  EXPECT_EQ(watch_.Newest()[0].loss(), 0.4);
  EXPECT_THAT(watch_.Poll(now), IsEmpty());
}

TEST_F(ProgressWatchTest, Page_CountsFromItsFirstStepAndGivesWayToTheProgramsOwnSteps) {
  auto page = progress::ProgressPage::Create(directory_, {7, 5, 8});
  ASSERT_OK(page);
  EXPECT_THAT(watch_.Poll(MonoNow()), IsEmpty());
  (*page)->Enter(WorkerPhase::kForward, 1);
  const auto snapshot = ReadProgressPage((*page)->path());
  ASSERT_OK(snapshot);
  const MonoTime later = MonoNow() + absl::Seconds(9);
  const std::vector<AgentEvent> events = PollOnceLooked(later);
  EXPECT_THAT(Words(events), ElementsAre("alive", "step 1"));
  // The time is the page's, however late it is read.
  EXPECT_EQ(std::get<WorkerAlive>(events[0]).at, snapshot->since);
  EXPECT_EQ(std::get<WorkerAlive>(events[0]).local_rank, 1u);
  EXPECT_THAT(watch_.Poll(later), IsEmpty());
  EXPECT_THAT(Words(watch_.OnLine(1, "step=101", later)), ElementsAre("step 101"));
  (*page)->Enter(WorkerPhase::kForward, 2);
  EXPECT_THAT(Words(watch_.Poll(later)), ElementsAre("alive"));
  EXPECT_EQ(watch_.Newest()[0].step(), 101u);
}

TEST_F(ProgressWatchTest, FileThatIsTouched_AndOutputInAFile) {
  EXPECT_THAT(watch_.Poll(MonoNow()), IsEmpty());
  const std::string touched = ProgressFilePath(directory_, 7, 4);
  std::ofstream(touched).flush();
  const MonoTime now = MonoNow();
  const std::vector<AgentEvent> events = watch_.Poll(now);
  EXPECT_THAT(Words(events), ElementsAre("alive"));
  EXPECT_LE(std::get<WorkerAlive>(events[0]).at, now);
  EXPECT_THAT(watch_.Poll(now), IsEmpty());
  // A clock that was set back counts as a change too.
  std::filesystem::last_write_time(touched, std::filesystem::file_time_type());
  EXPECT_THAT(Words(watch_.Poll(now)), ElementsAre("alive"));
  EXPECT_THAT(PollOnceLooked(now), IsEmpty()) << "an earlier run's line is no output of this one";
  EXPECT_TRUE(files_.Drain(kDrainTimeout));
  std::ofstream(log_, std::ios::app) << "a line\n";
  EXPECT_THAT(watch_.Poll(now), IsEmpty()) << "the look before the line";
  EXPECT_THAT(Words(PollOnceLooked(now)), ElementsAre("wrote"));
  EXPECT_THAT(PollOnceLooked(now), IsEmpty());
}

// The loop waits for no log file, and no worker counts as silent because its output is not visible.
TEST_F(ProgressWatchTest, OutputInAFileThatDoesNotAnswer) {
  const MonoTime now = MonoNow();
  std::promise<void> answers;
  files_.Post([gate = answers.get_future().share()] { gate.wait(); });
  EXPECT_THAT(watch_.Poll(now), IsEmpty());
  EXPECT_THAT(watch_.Poll(now + absl::Milliseconds(900)), IsEmpty());
  const std::vector<AgentEvent> events = watch_.Poll(now + absl::Seconds(1));
  EXPECT_THAT(Words(events), ElementsAre("wrote"));
  EXPECT_EQ(std::get<WorkerWrote>(events[0]).local_rank, 0u);
  // A generation that begins meanwhile ignores it.
  watch_.Start(directory_, 8, {{0, 4, {log_}, ""}});
  EXPECT_THAT(watch_.Poll(now + absl::Seconds(2)), IsEmpty());
  answers.set_value();
  EXPECT_THAT(PollOnceLooked(now + absl::Seconds(9)), IsEmpty());
}

TEST_F(ProgressWatchTest, AProgramThatCountsItsSteps_DoesSoInLaterGenerationsToo) {
  const MonoTime now = MonoNow();
  watch_.OnLine(0, "step=500", now);
  watch_.Start(directory_, 8, {{0, 4, {}, ""}, {1, 5, {}, ""}});
  auto page = progress::ProgressPage::Create(directory_, {8, 5, 8});
  ASSERT_OK(page);
  (*page)->Enter(WorkerPhase::kForward, 1);
  EXPECT_THAT(Words(watch_.Poll(now + absl::Seconds(1))), ElementsAre("alive"));
}

TEST(ParseProgressLine, AllNames_AnyOrder_AreTaken) {
  const auto progress = ParseProgressLine("loss=0.125 step=120 samples_per_second=3400.5");
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->progress.step(), 120u);
  EXPECT_EQ(progress->progress.samples_per_second(), 3400.5);
  EXPECT_EQ(progress->progress.loss(), 0.125);
}

TEST(ParseProgressLine, FiguresOfTheProgramsOwn) {
  const auto progress = ParseProgressLine("step=7 total=90 lr=3e-4 eval/acc=0.5 9x=1 a-b=1 note=x");
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->progress.total(), 90u);
  ASSERT_EQ(progress->progress.figures_size(), 2);
  EXPECT_EQ(progress->progress.figures(0).name(), "lr");
  EXPECT_EQ(progress->progress.figures(0).value(), 3e-4);
  EXPECT_EQ(progress->progress.figures(1).name(), "eval/acc");
  std::string many;
  for (int i = 0; i < 100; ++i) many += "m" + std::to_string(i) + "=1 ";
  EXPECT_EQ(ParseProgressLine(many)->progress.figures_size(), rpc::kMaxFigures);
}

TEST(ParseProgressLine, WhatIsNoNumber_IsLeftOut) {
  const auto progress = ParseProgressLine("step=7 note=a=b\r");
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->progress.step(), 7u);
  EXPECT_TRUE(progress->has_step);
}

TEST(ParseProgressLine, NothingKnown_GivesNothing) {
  for (const char* line :
       {"", "   ", "hello world", "step=", "step=-1", "step=1x", "=5", "samples_per_second=inf"}) {
    EXPECT_FALSE(ParseProgressLine(line).has_value()) << line;
  }
}

TEST(ParseProgressLine, LossThatIsNoNumber_IsShown) {
  const auto progress = ParseProgressLine("loss=nan");
  ASSERT_TRUE(progress.has_value());
  EXPECT_TRUE(std::isnan(progress->progress.loss()));
  EXPECT_FALSE(progress->has_step);
}

}  // namespace
}  // namespace cadre::agent
