#include "worker_runtime/progress/progress_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"

namespace cadre::progress {
namespace {

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
