#include "launcher/display/output_writer.h"

#include <fcntl.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "gtest/gtest.h"

namespace cadre::launcher {
namespace {

struct Pipe {
  Pipe() { EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0); }
  ~Pipe() {
    close(ends[0]);
    if (ends[1] >= 0) close(ends[1]);
  }
  // Closes the writer's end, and reads up to the end of file.
  std::string ReadAll() {
    close(ends[1]);
    ends[1] = -1;
    std::string all;
    char buffer[4096];
    ssize_t got;
    while ((got = read(ends[0], buffer, sizeof(buffer))) > 0) all.append(buffer, got);
    return all;
  }
  int ends[2];
};

TEST(OutputWriterTest, Writes_ArriveInOrder) {
  Pipe pipe;
  OutputWriter writer;
  std::string expected;
  for (int i = 0; i < 100; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    writer.Write(pipe.ends[1], line);
    expected += line;
  }
  EXPECT_TRUE(writer.Flush(absl::Seconds(10)));
  EXPECT_EQ(pipe.ReadAll(), expected);
}

TEST(OutputWriterTest, AFullDevice_IsSaidOnceAndWhatIsLostIsCounted) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  testing::internal::CaptureStderr();
  OutputWriter writer;
  for (int i = 0; i < 3; ++i) {
    writer.Write(full, "ten bytes\n");
    EXPECT_TRUE(writer.Flush(absl::Seconds(10)));
  }
  close(full);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said, "cadre: cannot write to descriptor " + std::to_string(full) +
                      ": No space left on device; the workers continue\n");
  ASSERT_EQ(writer.Losses().size(), 1u);
  EXPECT_EQ(writer.Losses()[0].substr(0, 12), "30 bytes for");
}

TEST(OutputWriterTest, ReaderThatHasGone_LosesNothingThatIsWanted) {
  Pipe pipe;
  close(pipe.ends[0]);
  signal(SIGPIPE, SIG_IGN);
  OutputWriter writer;
  writer.Write(pipe.ends[1], "nobody\n");
  EXPECT_TRUE(writer.Flush(absl::Seconds(10)));
  EXPECT_TRUE(writer.Losses().empty());
  pipe.ends[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

TEST(OutputWriterTest, ReaderThatStandsStill_CallerNeverWaitsAndTheBoundHolds) {
  constexpr size_t kPipe = 4096, kQueue = 16384;
  Pipe pipe;
  fcntl(pipe.ends[1], F_SETPIPE_SZ, static_cast<int>(kPipe));
  OutputWriter writer(kQueue);
  const std::string line(1023, 'x');
  // Far more than pipe and queue hold: Write returns although there is no reader.
  for (int i = 0; i < 1000; ++i) writer.Write(pipe.ends[1], line + "\n");
  EXPECT_FALSE(writer.Flush(absl::Milliseconds(1)));
  // At most one pipe and one queue arrive, because the text being written counts as queued.
  std::string got;
  char buffer[4096];
  // Without blocking: the last bytes arrive before the writer counts them as written.
  fcntl(pipe.ends[0], F_SETFL, O_NONBLOCK);
  while (!writer.Flush(absl::Milliseconds(0))) {
    const ssize_t n = read(pipe.ends[0], buffer, sizeof(buffer));
    if (n > 0) got.append(buffer, n);
  }
  got += pipe.ReadAll();
  EXPECT_LE(got.size(), kPipe + kQueue);
  EXPECT_GE(got.size(), kQueue / 2);
}

// A caller that checks HasRoom before each piece loses nothing, even if the reader is slower.
TEST(OutputWriterTest, ASlowReader_GetsAllOfWhatIsGivenWhenThereIsRoom) {
  constexpr size_t kPieces = 4000;
  Pipe pipe;
  OutputWriter writer(64 << 10);
  std::string got;
  std::thread reader([&] {
    char buffer[512];
    ssize_t n;
    while ((n = read(pipe.ends[0], buffer, sizeof(buffer))) > 0) got.append(buffer, n);
  });
  const std::string line = std::string(1023, 'x') + "\n";
  for (size_t i = 0; i < kPieces; ++i) {
    while (!writer.HasRoom()) sched_yield();
    writer.Write(pipe.ends[1], line);
  }
  EXPECT_TRUE(writer.Flush(absl::Seconds(10)));
  close(pipe.ends[1]);
  reader.join();
  pipe.ends[1] = -1;
  EXPECT_EQ(got.size(), kPieces * line.size());
}

// Waits until the condition holds, for a limited time.
bool Comes(const std::function<bool()>& so) {
  const MonoTime end = MonoNow() + absl::Seconds(20);
  while (!so() && MonoNow() < end) sched_yield();
  return so();
}

// The limit is zero here, so a terminal's reader counts as stopped at once.
//
// Fault (display): A terminal takes no output for 2 s -> Nothing waits for it: what does not fit is
// left out there, which is reported, and is in the log files
TEST(OutputWriterTest, APipesReaderIsWaitedFor_ATerminalsIsNotForLong) {
  Pipe pipe;
  OutputWriter to_pipe(64 << 10, absl::ZeroDuration());
  const std::string text(256 << 10, 'x');
  fcntl(pipe.ends[1], F_SETPIPE_SZ, 4096);
  to_pipe.Write(pipe.ends[1], text.substr(0, 60 << 10));
  EXPECT_TRUE(Comes([&] { return !to_pipe.HasRoom(); }));
  std::string got;
  fcntl(pipe.ends[0], F_SETFL, O_NONBLOCK);
  EXPECT_TRUE(Comes([&] {
    char buffer[4096];
    if (to_pipe.HasRoom()) return true;
    const ssize_t n = read(pipe.ends[0], buffer, sizeof(buffer));
    if (n > 0) got.append(buffer, static_cast<size_t>(n));
    return false;
  }));
  EXPECT_TRUE(to_pipe.Flush(absl::Seconds(10)));
  got += pipe.ReadAll();
  EXPECT_EQ(got.size(), 60u << 10);

  int terminal = -1, program = -1;
  ASSERT_EQ(openpty(&terminal, &program, nullptr, nullptr, nullptr), 0);
  OutputWriter to_terminal(64 << 10, absl::ZeroDuration());
  to_terminal.Write(program, text.substr(0, 60 << 10));
  EXPECT_TRUE(to_terminal.HasRoom());
  EXPECT_FALSE(to_terminal.FlushUntilInterrupted(absl::ZeroDuration(), [] { return false; }));
  EXPECT_TRUE(to_terminal.HasRoom());
  close(terminal);
  close(program);
}

TEST(OutputWriterTest, TheEndWaitsForAPipesReaderUntilItIsInterrupted) {
  Pipe pipe;
  fcntl(pipe.ends[1], F_SETPIPE_SZ, 4096);
  OutputWriter writer;
  writer.Write(pipe.ends[1], std::string(100000, 'x'));
  int asked = 0;
  EXPECT_FALSE(
      writer.FlushUntilInterrupted(absl::Milliseconds(1), [&asked] { return ++asked == 10; }));
  EXPECT_EQ(asked, 10);
  std::string got;
  std::thread reader([&] {
    char buffer[512];
    ssize_t n;
    while ((n = read(pipe.ends[0], buffer, sizeof(buffer))) > 0) got.append(buffer, n);
  });
  EXPECT_TRUE(writer.FlushUntilInterrupted(absl::Milliseconds(1), [] { return false; }));
  close(pipe.ends[1]);
  pipe.ends[1] = -1;
  reader.join();
  EXPECT_EQ(got.size(), 100000u);
}

}  // namespace
}  // namespace cadre::launcher
