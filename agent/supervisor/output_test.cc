// What happens to workers' output, with the real supervisor.
#include "agent/supervisor/output.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "agent/supervisor/frame_queue.h"
#include "agent/supervisor/supervisor_rig.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process.h"

namespace cadre::supervisor {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// `size` bytes with every value in them, the same each time.
std::string Binary(size_t size) {
  std::string bytes(size, '\0');
  uint32_t state = 1;
  for (char& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

size_t IndexOfExit(const SupervisorRig& rig) {
  const auto exit = std::find_if(rig.frames.begin(), rig.frames.end(), [](const Frame& frame) {
    return std::holds_alternative<ExitedFrame>(frame);
  });
  return static_cast<size_t>(exit - rig.frames.begin());
}

TEST(OutputTest, StreamsAreKeptApartAndPrecedeTheExit) {
  SupervisorRig rig;
  rig.Run(rig.Shell("echo one; echo two >&2; echo three"));
  EXPECT_EQ(rig.Output(kStdoutStream), "one\nthree\n");
  EXPECT_EQ(rig.Output(kStderrStream), "two\n");
  EXPECT_EQ(IndexOfExit(rig), rig.frames.size() - 1);
}

TEST(OutputTest, AMegabyteArrivesWholeThoughTheAgentReadsLate) {
  SupervisorRig rig;
  const std::string bytes = Binary(1 << 20);
  WriteFile(rig.folder() + "/bytes", bytes);
  StartFrame start = rig.Shell("cat bytes; cat bytes >&2");
  start.stdout_path = rig.folder() + "/new/folders/stdout.log";
  rig.Send(start);
  rig.Until([&] { return rig.Started().has_value(); });
  // The worker ends although nothing is read: the test reads only after that.
  ASSERT_TRUE(WaitUntilDead(rig.Started()->pid));
  rig.Until([&] { return rig.Exit().has_value(); });
  EXPECT_TRUE(rig.Output(kStdoutStream) == bytes);
  EXPECT_TRUE(rig.Output(kStderrStream) == bytes);
  EXPECT_TRUE(ReadFile(start.stdout_path) == bytes);
  EXPECT_EQ(rig.Dropped(kStdoutStream), 0u);
  EXPECT_EQ(IndexOfExit(rig), rig.frames.size() - 1);
}

// The worker waits for an agent that reads more slowly than it writes.
//
// Fault (display): A worker writes far more at once than the supervisor queues -> The worker waits,
// and all output arrives
TEST(OutputTest, FarMoreThanTheQueueArrivesWhole) {
  SupervisorRig rig;
  constexpr size_t kBytes = 64 << 20;
  rig.Run(rig.Shell(absl::StrCat("head -c ", kBytes, " /dev/zero; echo end >&2")));
  EXPECT_EQ(rig.Output(kStdoutStream).size(), kBytes);
  EXPECT_EQ(rig.Dropped(kStdoutStream), 0u);
}

TEST(OutputTest, AnAgentThatDoesNotReadLosesBytesButHoldsNobodyUp) {
  SupervisorRig rig;
  constexpr size_t kBytes = 64 << 20;
  StartFrame start = rig.Shell(absl::StrCat("head -c ", kBytes, " /dev/zero; echo end >&2"));
  start.stdout_path = rig.folder() + "/stdout.log";
  start.error_file = rig.folder() + "/error.json";
  rig.Send(start);
  rig.Until([&] { return rig.Started().has_value(); });
  ASSERT_TRUE(WaitUntilDead(rig.Started()->pid));
  rig.Until([&] { return rig.Exit().has_value(); });
  const size_t got = rig.Output(kStdoutStream).size();
  EXPECT_GT(rig.Dropped(kStdoutStream), 0u);
  EXPECT_EQ(got + rig.Dropped(kStdoutStream), kBytes);
  EXPECT_EQ(ReadFile(start.stdout_path).size(), kBytes) << "the file is always whole";
  EXPECT_EQ(rig.Exit()->exit_code, 0);
}

// If a pager is left alone, a worker has to wait as it would for the pager itself. Meanwhile the
// other workers run on, their ends are reported, and no output is lost.
TEST(OutputTest, WhatTheAgentDoesNotWantYetWaitsInThePipe) {
  SupervisorRig rig;
  constexpr size_t kBytes = 8 << 20;
  rig.Send(ReadingFrame{false});
  StartFrame start = rig.Shell(absl::StrCat("head -c ", kBytes, " /dev/zero"));
  start.stdout_path = rig.folder() + "/stdout.log";
  rig.Send(start);
  rig.Run(rig.Shell("echo last >&2; exit 3", 2));
  EXPECT_EQ(rig.Exit(2)->exit_code, 3);
  EXPECT_EQ(rig.Output(kStderrStream, 2), "last\n");
  EXPECT_EQ(rig.Output(kStdoutStream), "");
  EXPECT_FALSE(rig.Exit().has_value());
  rig.Send(ReadingFrame{true});
  rig.Until([&] { return rig.Exit().has_value(); });
  EXPECT_EQ(rig.Output(kStdoutStream).size(), kBytes);
  EXPECT_EQ(rig.Dropped(kStdoutStream), 0u);
  EXPECT_EQ(ReadFile(start.stdout_path).size(), kBytes);
}

// The next agent has not asked for a pause, so workers must not go on waiting.
TEST(OutputTest, AnAgentThatDiesHoldsNobodyBack) {
  SupervisorRig rig;
  rig.Keep(absl::Minutes(1));
  rig.Send(rig.Shell("echo begins; read x <go; head -c 3000000 /dev/zero; sleep 1000"));
  ASSERT_EQ(mkfifo((rig.folder() + "/go").c_str(), 0600), 0);
  rig.Lines(1);
  rig.Send(ReadingFrame{false});
  rig.Die();
  rig.Adopt();
  const int fifo = open((rig.folder() + "/go").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(write(fifo, "go\n", 3), 3);
  EXPECT_TRUE(rig.Until([&] { return rig.Output(kStdoutStream).size() == 3000000; }));
  close(fifo);
}

TEST(OutputTest, NotForwardedStillReachesTheFileAndTheEvidence) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("echo out; echo err >&2");
  start.stdout_path = rig.folder() + "/stdout.log";
  start.forward_stdout = false;
  start.forward_stderr = false;
  const ExitedFrame exited = rig.Run(start);
  EXPECT_EQ(rig.Output(kStdoutStream), "");
  EXPECT_EQ(rig.Output(kStderrStream), "");
  EXPECT_EQ(ReadFile(start.stdout_path), "out\n");
  EXPECT_EQ(exited.last_lines, "err\n");
}

// A time and its offset are recorded at most once a second, however often the worker writes.
TEST(OutputTest, WhenItWasWrittenIsKeptBesideTheFile) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("for i in $(seq 200); do echo $i; done");
  start.stdout_path = rig.folder() + "/stdout.log";
  WriteFile(start.stdout_path, "old\n");
  const int64_t before = absl::ToUnixMillis(absl::Now());
  rig.Run(start);
  const int64_t took = absl::ToUnixMillis(absl::Now()) - before;
  const std::string times = ReadFile(rig.folder() + "/stdout.times");
  const std::vector<std::string> words = absl::StrSplit(times, absl::ByAnyChar(" \n"));
  ASSERT_GE(words.size(), 3u) << times;
  int64_t at = 0;
  ASSERT_TRUE(absl::SimpleAtoi(words[0], &at));
  EXPECT_GE(at, before);
  EXPECT_LE(at, before + took);
  EXPECT_EQ(words[1], "4") << "what is new begins there";
  EXPECT_LE(std::count(times.begin(), times.end(), '\n'), 1 + took / 1000);
}

TEST(OutputTest, FilesAreAppendedTo) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("echo new");
  start.stdout_path = rig.folder() + "/stdout.log";
  WriteFile(start.stdout_path, "old\n");
  rig.Run(start);
  EXPECT_EQ(ReadFile(start.stdout_path), "old\nnew\n");
}

// A worker whose streams go to `out` and `err`, files that the user named.
StartFrame ToNamedFiles(SupervisorRig& rig, const std::string& script) {
  StartFrame start = rig.Shell(script);
  start.stdout_path = rig.folder() + "/rank_0/stdout.log";
  start.stderr_path = rig.folder() + "/rank_0/stderr.log";
  start.stdout_file.path = rig.folder() + "/out";
  start.stderr_file.path = rig.folder() + "/err";
  return start;
}

TEST(NamedFileTest, TheLogFileIsALinkToIt) {
  SupervisorRig rig;
  const StartFrame start = ToNamedFiles(rig, "echo one; echo two >&2");
  const ExitedFrame exited = rig.Run(start);
  EXPECT_EQ(ReadFile(rig.folder() + "/out"), "one\n");
  EXPECT_EQ(ReadFile(rig.folder() + "/err"), "two\n");
  EXPECT_EQ(std::filesystem::read_symlink(start.stdout_path), start.stdout_file.path);
  EXPECT_EQ(std::filesystem::read_symlink(start.stderr_path), start.stderr_file.path);
  EXPECT_EQ(exited.last_lines, "two\n");
  EXPECT_EQ(rig.Output(kStdoutStream), "one\n");
  EXPECT_NE(ReadFile(rig.folder() + "/rank_0/stdout.times"), "");
  EXPECT_NE(access((rig.folder() + "/out.times").c_str(), F_OK), 0);
}

TEST(NamedFileTest, BothStreamsInOneFileKeepTheirOrder) {
  SupervisorRig rig;
  StartFrame start =
      ToNamedFiles(rig, "for i in $(seq 500); do echo $i; echo -$i >&2; done; echo last words >&2");
  start.stderr_file = start.stdout_file;
  const ExitedFrame exited = rig.Run(start);
  std::string expected;
  for (int i = 1; i <= 500; ++i) absl::StrAppend(&expected, i, "\n-", i, "\n");
  EXPECT_EQ(ReadFile(rig.folder() + "/out"), expected + "last words\n");
  EXPECT_EQ(std::filesystem::read_symlink(start.stderr_path), start.stdout_file.path);
  EXPECT_THAT(exited.last_lines, EndsWith("-500\nlast words\n"));
}

TEST(NamedFileTest, WhatItContainedIsRemovedIfItIsOld) {
  SupervisorRig rig;
  const int64_t later_ms = absl::ToUnixMillis(absl::Now() + absl::Hours(1));
  StartFrame start = ToNamedFiles(rig, "echo new");
  for (const int64_t before_ms : {int64_t{0}, int64_t{1000}}) {
    WriteFile(start.stdout_file.path, "old\n");
    start.stdout_file.empty_before_ms = before_ms;
    rig.Run(start);
    EXPECT_EQ(ReadFile(start.stdout_file.path), "old\nnew\n");
    ++start.group;
  }
  start.stdout_file.empty_before_ms = later_ms;
  rig.Run(start);
  EXPECT_EQ(ReadFile(start.stdout_file.path), "new\n");
}

// Fault (display): A file that the user named for a job's output cannot be opened -> The job fails,
// and the error names the file
TEST(NamedFileTest, WhereItCannotBeOpenedTheWorkerIsNotStarted) {
  SupervisorRig rig;
  StartFrame start = ToNamedFiles(rig, "touch started");
  start.stdout_file.path = rig.folder() + "/none/out";
  const ExitedFrame exited = rig.Run(start);
  EXPECT_EQ(exited.exec_errno, ENOENT);
  EXPECT_EQ(exited.exec_step, "output file " + start.stdout_file.path);
  EXPECT_NE(access((rig.folder() + "/started").c_str(), F_OK), 0);
  EXPECT_NE(access((rig.folder() + "/none").c_str(), F_OK), 0);
}

TEST(NamedFileTest, ADeviceWillDo) {
  SupervisorRig rig;
  StartFrame start = ToNamedFiles(rig, "echo one; echo two >&2");
  start.stdout_file.path = start.stderr_file.path = "/dev/null";
  start.stdout_file.empty_before_ms = INT64_MAX;
  EXPECT_EQ(rig.Run(start).exit_code, 0);
  EXPECT_NE(access((rig.folder() + "/rank_0/stdout.times").c_str(), F_OK), 0);
}

TEST(NamedFileTest, ItNeedsNoLogFile) {
  SupervisorRig rig;
  StartFrame start = ToNamedFiles(rig, "echo one");
  start.stdout_path = start.stderr_path = "";
  rig.Run(start);
  EXPECT_EQ(ReadFile(rig.folder() + "/out"), "one\n");
  EXPECT_NE(access((rig.folder() + "/.times").c_str(), F_OK), 0);
}

TEST(OutputTest, LastLinesAreStdoutWhereStderrIsEmpty) {
  SupervisorRig rig;
  EXPECT_EQ(rig.Run(rig.Shell("echo only this")).last_lines, "only this\n");
}

TEST(OutputTest, LastLinesStartAtALineAndKeepTheirLimit) {
  SupervisorRig rig;
  const ExitedFrame exited = rig.Run(rig.Shell("seq 1 50000 >&2"));
  EXPECT_LE(exited.last_lines.size(), kMaxTailBytes);
  EXPECT_GT(exited.last_lines.size(), kMaxTailBytes - 10);
  EXPECT_THAT(exited.last_lines, EndsWith("\n49999\n50000\n"));
  EXPECT_EQ(exited.last_lines.find('\n'), 5u) << "not cut in the middle of a number";
}

TEST(OutputTest, ALineWithoutAnEndIsPassedOn) {
  SupervisorRig rig;
  const ExitedFrame exited = rig.Run(rig.Shell("head -c 3000000 /dev/zero | tr '\\0' x"));
  EXPECT_EQ(rig.Output(kStdoutStream), std::string(3000000, 'x'));
  EXPECT_EQ(exited.last_lines, std::string(kMaxTailBytes, 'x'));
}

TEST(OutputTest, ProgressComesInWholeLines) {
  SupervisorRig rig;
  rig.Run(rig.Shell("printf 'step=1\\nst' >&3; printf 'ep=2\\nrest' >&3"));
  for (const Frame& frame : rig.frames) {
    const auto* output = std::get_if<OutputFrame>(&frame);
    if (output == nullptr || output->stream != kProgressStream) continue;
    EXPECT_TRUE(output->bytes == "rest" || output->bytes.back() == '\n') << output->bytes;
  }
  EXPECT_EQ(rig.Output(kProgressStream), "step=1\nstep=2\nrest");
}

TEST(OutputTest, AnEndlessProgressLineIsPassedOnInPieces) {
  SupervisorRig rig;
  rig.Run(rig.Shell("head -c 100000 /dev/zero | tr '\\0' x >&3"));
  EXPECT_EQ(rig.Output(kProgressStream), std::string(100000, 'x'));
}

// The test needs root to mount a small file system that is soon full.
TEST(OutputTest, AFullDiskDoesNotStopTheWorker) {
  SupervisorRig rig;
  const std::string disk = rig.folder() + "/disk";
  ASSERT_EQ(mkdir(disk.c_str(), 0700), 0);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=32k,mode=755") != 0) {
    GTEST_SKIP() << "needs the right to mount";
  }
  StartFrame start = rig.Shell("seq 1 200000");
  start.stdout_path = disk + "/log";
  const ExitedFrame exited = rig.Run(start);
  umount2(disk.c_str(), MNT_DETACH);
  EXPECT_EQ(exited.exit_code, 0);
  EXPECT_THAT(rig.Output(kStdoutStream), StartsWith("1\n2\n"));
  EXPECT_THAT(rig.Output(kStdoutStream), EndsWith("\n200000\n"));
}

// Redirects the stderr of this process and its children to a file that a test can watch.
class WatchedStderr {
 public:
  WatchedStderr() : folder_(MakeTempDir("stderr")), saved_(dup(STDERR_FILENO)) {
    const ScopedFd file(open(path().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    dup2(file.get(), STDERR_FILENO);
  }
  ~WatchedStderr() {
    dup2(saved_.get(), STDERR_FILENO);
    std::filesystem::remove_all(folder_);
  }
  const std::string& folder() const { return folder_; }
  std::string Text() const { return ReadFile(path()); }

 private:
  std::string path() const { return folder_ + "/text"; }

  const std::string folder_;
  const ScopedFd saved_;
};

// The test needs root to mount a small file system that is soon full.
//
// Fault (display): A log file lacks output that could not be written -> The gap is marked in the
// file where it goes on
TEST(OutputTest, WhatTheFileLacksIsMarkedInIt) {
  const WatchedStderr said;
  SupervisorRig rig;
  const std::string disk = rig.folder() + "/disk";
  ASSERT_EQ(mkdir(disk.c_str(), 0700), 0);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=32k,mode=755") != 0) {
    GTEST_SKIP() << "needs the right to mount";
  }
  ASSERT_EQ(mkfifo((rig.folder() + "/go").c_str(), 0600), 0);
  StartFrame start =
      rig.Shell("head -c 100000 /dev/zero | tr '\\0' y; read x <go; echo; echo more");
  start.stdout_path = disk + "/log";
  rig.Send(start);
  rig.Until([&] { return rig.Output(kStdoutStream).size() == 100000; });
  rig.UntilFiles([&] { return absl::StrContains(said.Text(), "/log: No space left"); },
                 said.folder());
  // What the file thread still has to write of the first bytes comes after the mark.
  ASSERT_EQ(mount("tmpfs", disk.c_str(), "tmpfs", MS_REMOUNT, "size=1m"), 0);
  const int fifo = open((rig.folder() + "/go").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(write(fifo, "go\n", 3), 3);
  rig.Until([&] { return rig.Exit().has_value(); });
  close(fifo);
  const std::string text = ReadFile(disk + "/log");
  umount2(disk.c_str(), MNT_DETACH);

  const size_t kept = text.find("\n[");
  ASSERT_NE(kept, std::string::npos) << text.size();
  size_t missing = 0;
  ASSERT_TRUE(absl::SimpleAtoi(text.substr(kept + 2, text.find(' ', kept) - kept - 2), &missing));
  ASSERT_GT(missing, 0);
  ASSERT_LE(kept + missing, 100000);
  EXPECT_EQ(text, absl::StrCat(std::string(kept, 'y'), "\n[", missing, " bytes are missing here]\n",
                               std::string(100000 - kept - missing, 'y'), "\nmore\n"));
}

// Fault (display): Log files are removed while workers run -> The launcher names each file that was
// lost; the verdict's and the timeline's files are made again
TEST(OutputTest, AFileThatWasRemovedIsNamed) {
  testing::internal::CaptureStderr();
  {
    SupervisorRig rig;
    StartFrame start = rig.Shell("echo gone; rm log; exit 0");
    start.stdout_path = rig.folder() + "/log";
    rig.Run(start);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("/log was removed while"));
}

TEST(OutputTest, AGrandchildThatHoldsStdoutDoesNotDelayTheExit) {
  SupervisorRig rig;
  // The worker waits until the other process has its session: processes in its own group die with
  // it.
  rig.Run(
      rig.Shell("echo worker; mkfifo up; setsid sh -c 'echo >up; exec sleep 1000' & read x <up;"
                "exit 3"));
  EXPECT_EQ(rig.Exit()->exit_code, 3);
  EXPECT_EQ(rig.Output(kStdoutStream), "worker\n");
}

TEST(OutputTest, WhatAGrandchildWritesLaterStillArrives) {
  SupervisorRig rig;
  rig.Run(
      rig.Shell("mkfifo fifo up; setsid sh -c 'echo >up; read go <fifo; echo late' & read x <up"));
  // Opened for both, so that this side never blocks.
  const int fifo = open((rig.folder() + "/fifo").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fifo, 0);
  ASSERT_EQ(write(fifo, "go\n", 3), 3);
  rig.Until([&] { return rig.Output(kStdoutStream) == "late\n"; });
  close(fifo);
}

}  // namespace
}  // namespace cadre::supervisor
