#include "agent/evidence/progress_watch.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/progress/progress_page.h"

namespace cadre::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kPatience = absl::Seconds(60);

// What happened, in words.
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
  // What a look at log files found that began at the poll before.
  std::vector<AgentEvent> PollOnceLooked(MonoTime now) {
    EXPECT_TRUE(files_.Drain(kPatience));
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
  // The moment is the page's, however late it is read.
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
  // A clock that was set back is a change like any other.
  std::filesystem::last_write_time(touched, std::filesystem::file_time_type());
  EXPECT_THAT(Words(watch_.Poll(now)), ElementsAre("alive"));
  EXPECT_THAT(PollOnceLooked(now), IsEmpty()) << "an earlier run's line is no output of this one";
  EXPECT_TRUE(files_.Drain(kPatience));
  std::ofstream(log_, std::ios::app) << "a line\n";
  EXPECT_THAT(watch_.Poll(now), IsEmpty()) << "the look before the line";
  EXPECT_THAT(Words(PollOnceLooked(now)), ElementsAre("wrote"));
  EXPECT_THAT(PollOnceLooked(now), IsEmpty());
}

// The loop waits for no log file, and no worker is held to be silent because none can be seen.
TEST_F(ProgressWatchTest, OutputInAFileThatDoesNotAnswer) {
  const MonoTime now = MonoNow();
  std::promise<void> answers;
  files_.Post([gate = answers.get_future().share()] { gate.wait(); });
  EXPECT_THAT(watch_.Poll(now), IsEmpty());
  EXPECT_THAT(watch_.Poll(now + absl::Milliseconds(900)), IsEmpty());
  const std::vector<AgentEvent> events = watch_.Poll(now + absl::Seconds(1));
  EXPECT_THAT(Words(events), ElementsAre("wrote"));
  EXPECT_EQ(std::get<WorkerWrote>(events[0]).local_rank, 0u);
  // A generation that begins meanwhile knows nothing of it.
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

}  // namespace
}  // namespace cadre::agent
