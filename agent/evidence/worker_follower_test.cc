#include "agent/evidence/worker_follower.h"

#include <stdlib.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "agent/run_files.h"
#include "base/clock.h"
#include "base/own_files.h"
#include "base/progress_snapshot.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/progress/progress_page.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::chrono::seconds kTestTimeout(60);

std::string TemporaryDirectory(std::string name) {
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  return name;
}

class WorkerFollowerTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void OnReport(AgentEvent event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (auto* found = std::get_if<EvidenceFound>(&event)) found_ = std::move(found->ranks);
    done_ = done_ || std::holds_alternative<EvidenceDone>(event);
    changed_.notify_all();
  }

  // Two workers, of which the second does not run.
  NodeWorkersByRank Workers() const {
    return {
        {0, {4, getpid(), {{}, {directory_ + "/silent.log"}, directory_ + "/progress", "", ""}}},
        {1, {5, 0, {}}}};
  }

  const std::string directory_ = TemporaryDirectory(::testing::TempDir() + "/follower_XXXXXX");
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::RankEvidence> found_;
  bool done_ = false;
  FileThread files_{{}};
  WorkerFollower follower_{directory_, files_,
                           [this](AgentEvent event) { OnReport(std::move(event)); }};
};

TEST_F(WorkerFollowerTest, LinesAndFilesAreProgress) {
  follower_.Begin(3, Workers(), true);
  const MonoTime now = MonoNow();
  EXPECT_THAT(follower_.OnLines(0, "", now), IsEmpty());
  const auto events = follower_.OnLines(0, "step=1\nstep=2\n", now);
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(std::get<WorkerProgress>(events[1]).progress.step(), 2u);
  EXPECT_THAT(follower_.Newest(), SizeIs(1));
  EXPECT_THAT(follower_.Poll(now), IsEmpty());
  EXPECT_TRUE(files_.Drain(absl::FromChrono(kTestTimeout)));
  std::ofstream(directory_ + "/progress").flush();
  std::ofstream(directory_ + "/silent.log") << "a line\n";
  EXPECT_THAT(follower_.Poll(now), SizeIs(1));
  EXPECT_TRUE(files_.Drain(absl::FromChrono(kTestTimeout)));
  const auto wrote = follower_.Poll(now);
  ASSERT_THAT(wrote, SizeIs(1));
  EXPECT_TRUE(std::holds_alternative<WorkerWrote>(wrote[0]));
  follower_.Begin(4, Workers(), true);
  EXPECT_THAT(follower_.Newest(), IsEmpty());
}

// Fault (display): The log's file system does not answer, without `timeouts.silence` -> The
// launcher does not look at the log files at all
TEST_F(WorkerFollowerTest, LogFilesAreLeftAloneWhereNobodyWaitsForOutput) {
  follower_.Begin(3, Workers(), false);
  const MonoTime now = MonoNow();
  for (int i = 0; i < 3; ++i) {
    std::ofstream(directory_ + "/silent.log", std::ios::app) << "a line\n";
    EXPECT_THAT(follower_.Poll(now + i * kFileTaskHungAfter), IsEmpty());
    EXPECT_TRUE(files_.Drain(absl::FromChrono(kTestTimeout)));
  }
}

TEST_F(WorkerFollowerTest, WhereAWorkerWasIsOnItsPage) {
  follower_.Begin(3, Workers(), true);
  const NodeWorkersByRank workers = Workers();
  EXPECT_FALSE(follower_.LastPlaceOf(0, workers.at(0), {}).has_value());
  auto page = progress::ProgressPage::Create(directory_, {3, 4, 8});
  ASSERT_OK(page);
  (*page)->Enter(WorkerPhase::kBackward, 17);
  const auto last = follower_.LastPlaceOf(0, workers.at(0), {});
  ASSERT_TRUE(last.has_value());
  EXPECT_THAT(last->summary(), HasSubstr("step 17"));
}

TEST_F(WorkerFollowerTest, CollectsFromThoseThatRun) {
  RunLogs logs(directory_ + "/logs", "j");
  logs.SetGeneration("", 3);
  ASSERT_OK(MakeDirectories(logs.RankPath(4, "")));
  follower_.Begin(3, Workers(), true);
  follower_.Collect({3, {0}}, Workers(), logs);
  follower_.CancelCollecting();
  std::unique_lock<std::mutex> lock(mutex_);
  ASSERT_TRUE(changed_.wait_for(lock, kTestTimeout, [this] { return done_; }));
  ASSERT_THAT(found_, SizeIs(1));
  EXPECT_EQ(found_[0].rank(), 4);
  EXPECT_EQ(found_[0].pid(), getpid());
  EXPECT_EQ(found_[0].file(), logs.RankPath(4, "evidence.txt"));
  EXPECT_TRUE(std::filesystem::exists(found_[0].file()));
}

}  // namespace
}  // namespace cadre::agent
