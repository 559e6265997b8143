#include "worker_runtime/progress/progress_page.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::progress {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class ProgressPageTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(directory_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_ = ::testing::TempDir() + "/page_XXXXXX";
};

TEST_F(ProgressPageTest, TellsWhereAWorkerIs) {
  auto page = ProgressPage::Create(directory_, {7, 3, 4});
  ASSERT_OK(page);
  (*page)->Enter(WorkerPhase::kWaiting, 418, 2);
  std::vector<float> gradients(10);
  const uint64_t first = (*page)->Begin(418, 0, {gradients.data(), 10, DataType::kFloat32});
  (*page)->End(first, true);
  (*page)->Begin(418, 1, {gradients.data(), 9, DataType::kFloat64});
  const auto snapshot = ReadProgressPage(ProgressPagePath(directory_, 7, 3));
  ASSERT_OK(snapshot);
  EXPECT_EQ(snapshot->owner.generation, 7u);
  EXPECT_EQ(snapshot->owner.world_size, 4);
  EXPECT_EQ(snapshot->pid, getpid());
  EXPECT_EQ(snapshot->step, 418);
  ASSERT_THAT(snapshot->collectives, SizeIs(2));
  EXPECT_EQ(snapshot->collectives[0].state, CollectiveRecord::State::kDone);
  EXPECT_EQ(snapshot->collectives[1].state, CollectiveRecord::State::kRunning);
  EXPECT_EQ(snapshot->collectives[1].bucket, 1);
  EXPECT_EQ(snapshot->collectives[1].count, 9u);
  EXPECT_EQ(snapshot->collectives[1].type, static_cast<uint32_t>(DataType::kFloat64));
  EXPECT_THAT(
      Describe(*snapshot, snapshot->since + std::chrono::seconds(41)),
      AllOf(HasSubstr("rank 3 (pid "), HasSubstr("step 418, waits for bucket 2 since 41s")));
  EXPECT_THAT((*page)->DescribeAll(), HasSubstr("step 418"));
}

TEST_F(ProgressPageTest, RemembersTheLastCollectives) {
  auto page = ProgressPage::Create(directory_, {1, 0, 1});
  ASSERT_OK(page);
  const size_t count = 3 * kCollectivesInPage + 5;
  for (size_t i = 1; i <= count; ++i) (*page)->Begin(i, 0, Buffer{});
  // Ending a collective whose entry was overwritten does not change its successor.
  (*page)->End(1, false);
  const auto snapshot = ReadProgressPage((*page)->path());
  ASSERT_OK(snapshot);
  ASSERT_THAT(snapshot->collectives, SizeIs(kCollectivesInPage));
  for (size_t i = 0; i < kCollectivesInPage; ++i) {
    EXPECT_EQ(snapshot->collectives[i].sequence, count - kCollectivesInPage + 1 + i);
    EXPECT_EQ(snapshot->collectives[i].state, CollectiveRecord::State::kRunning);
  }
}

// The process is stopped, then killed; its page is read each time.
TEST_F(ProgressPageTest, OutlivesItsWorker) {
  const pid_t child = fork();
  if (child == 0) {
    auto page = ProgressPage::Create(directory_, {2, 1, 2});
    if (page.ok()) (*page)->Enter(WorkerPhase::kBackward, 12);
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  const std::string path = ProgressPagePath(directory_, 2, 1);
  auto snapshot = ReadProgressPage(path);
  ASSERT_OK(snapshot);
  EXPECT_EQ(snapshot->step, 12);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  snapshot = ReadProgressPage(path);
  ASSERT_OK(snapshot);
  EXPECT_EQ(snapshot->pid, child);
  EXPECT_THAT(Describe(*snapshot, MonoNow()), HasSubstr("step 12, is in the backward pass since"));
}

TEST_F(ProgressPageTest, GoesWithAWorkerThatEndsWell) {
  auto page = ProgressPage::Create(directory_, {1, 0, 1});
  ASSERT_OK(page);
  page->reset();
  EXPECT_THAT(ReadProgressPage(ProgressPagePath(directory_, 1, 0)),
              StatusIs(StatusCode::kNotFound));
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(ProgressPageTest, RefusesWhatIsNoPage) {
  const std::string path = directory_ + "/other";
  std::ofstream(path) << "hello";
  EXPECT_THAT(ReadProgressPage(path), StatusIs(StatusCode::kDataLoss, HasSubstr("4096 bytes")));
  std::ofstream(path) << std::string(kProgressPageBytes, 'x');
  EXPECT_THAT(ReadProgressPage(path),
              StatusIs(StatusCode::kDataLoss, HasSubstr("of this version")));
  EXPECT_FALSE(ProgressPage::Create(directory_ + "/missing", {1, 0, 1}).ok());
}

TEST_F(ProgressPageTest, OfThisWorker_IsOneAndGoesWithItsLastHolder) {
  EXPECT_EQ(ProgressPage::OfThisWorker(), nullptr);
  setenv("CADRE_AGENT", (directory_ + "/socket").c_str(), 1);
  setenv("CADRE_GENERATION", "6", 1);
  setenv("RANK", "2", 1);
  setenv("WORLD_SIZE", "4", 1);
  const std::string path = ProgressPagePath(directory_, 6, 2);
  {
    const auto page = ProgressPage::OfThisWorker();
    ASSERT_NE(page, nullptr);
    EXPECT_EQ(page->path(), path);
    EXPECT_EQ(ProgressPage::OfThisWorker(), page);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  for (const char* name : {"CADRE_AGENT", "CADRE_GENERATION", "RANK", "WORLD_SIZE"}) unsetenv(name);
}

TEST_F(ProgressPageTest, LiesNextToTheAgentsSocket) {
  setenv("CADRE_AGENT", (directory_ + "/socket").c_str(), 1);
  auto page = ProgressPage::CreateNextToAgent({5, 0, 1});
  ASSERT_OK(page);
  EXPECT_EQ((*page)->path(), ProgressPagePath(directory_, 5, 0));
  unsetenv("CADRE_AGENT");
  page = ProgressPage::CreateNextToAgent({5, 0, 1});
  ASSERT_OK(page);
  EXPECT_EQ(*page, nullptr);
}

MonoTime At(int64_t milliseconds) { return MonoTime::FromMicros(milliseconds * 1000); }

class ProgressWriterTest : public ::testing::Test {
 protected:
  ProgressWriterTest() { EXPECT_EQ(pipe2(ends_, O_CLOEXEC | O_NONBLOCK), 0); }
  ~ProgressWriterTest() override {
    CloseReader();
    close(ends_[1]);
  }

  void CloseReader() {
    if (ends_[0] >= 0) close(ends_[0]);
    ends_[0] = -1;
  }

  std::string Read() {
    char buffer[4096];
    const ssize_t bytes = read(ends_[0], buffer, sizeof(buffer));
    return bytes > 0 ? std::string(buffer, bytes) : "";
  }

  int ends_[2];
};

TEST_F(ProgressWriterTest, WritesALine) {
  ProgressWriter writer(ends_[1]);
  writer.Report(At(0), 418, 1234.5, 0.25);
  EXPECT_EQ(Read(), "step=418 samples_per_second=1234.5 loss=0.25\n");
}

TEST_F(ProgressWriterTest, WritesAtMostTenLinesASecond) {
  ProgressWriter writer(ends_[1]);
  writer.Report(At(0), 1, 0, 0);
  writer.Report(At(99), 2, 0, 0);
  writer.Report(At(100), 3, 0, 0);
  EXPECT_EQ(Read(), "step=1 samples_per_second=0 loss=0\nstep=3 samples_per_second=0 loss=0\n");
}

TEST_F(ProgressWriterTest, DropsLinesWhenThePipeIsFull) {
  ProgressWriter writer(ends_[1]);
  const std::string page(4096, 'x');
  while (write(ends_[1], page.data(), page.size()) > 0) {
  }
  writer.Report(At(0), 1, 0, 0);
  std::string all;
  for (std::string some = Read(); !some.empty(); some = Read()) all += some;
  EXPECT_EQ(all.find("step"), std::string::npos);
  writer.Report(At(200), 2, 0, 0);
  EXPECT_EQ(Read(), "step=2 samples_per_second=0 loss=0\n");
}

TEST_F(ProgressWriterTest, SurvivesAReaderThatIsGone) {
  ProgressWriter writer(ends_[1]);
  CloseReader();
  writer.Report(At(0), 1, 0, 0);
  writer.Report(At(200), 2, 0, 0);
}

TEST_F(ProgressWriterTest, LeavesFilesAlone) {
  const std::string path = ::testing::TempDir() + "/not_a_pipe";
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0);
  ProgressWriter writer(file);
  writer.Report(At(0), 1, 0, 0);
  EXPECT_EQ(lseek(file, 0, SEEK_END), 0);
  close(file);
  ProgressWriter nothing(-1);
  nothing.Report(At(0), 1, 0, 0);
}

}  // namespace

}  // namespace cadre::progress
