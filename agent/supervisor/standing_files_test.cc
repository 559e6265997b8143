// Workers whose log files are on a file system that does not answer, with the real supervisor.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/supervisor/supervisor_rig.h"
#include "base/clock.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/file_systems.h"

namespace cadre::supervisor {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class StandingFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto mounted = HangingFileSystem::Mount();
    if (absl::IsFailedPrecondition(mounted.status())) GTEST_SKIP() << mounted.status().message();
    ASSERT_THAT(mounted, IsOk());
    disk_ = *std::move(mounted);
  }

  // A worker whose files are all on the disk.
  StartFrame OnDisk(SupervisorRig& rig, const std::string& script, uint64_t group = 1) {
    StartFrame start = rig.Shell(script, group);
    start.stdout_path = absl::StrCat(disk_->path(), "/logs/", group, "/stdout.log");
    start.stderr_path = absl::StrCat(disk_->path(), "/logs/", group, "/stderr.log");
    start.error_file = absl::StrCat(disk_->path(), "/logs/", group, "/error.json");
    start.forward_stdout = false;
    return start;
  }
  std::string FolderBehind(uint64_t group = 1) const {
    return absl::StrCat(disk_->behind(), "/logs/", group);
  }

  std::unique_ptr<HangingFileSystem> disk_;
};

// Fault (display): The log's file system does not answer while a worker writes 40 MiB -> No worker
// waits, a deadline of 0.3 s is met within 1 s, and 8 to 20 MiB are kept for the file; the rest is
// left out, which is reported and marked there
TEST_F(StandingFilesTest, StopNoWorkerAndNoDeadline) {
  testing::internal::CaptureStderr();
  constexpr size_t kBytes = 40 << 20;
  auto rig = std::make_unique<SupervisorRig>();
  ASSERT_EQ(mkfifo((rig->folder() + "/go").c_str(), 0600), 0);
  // Opened for both, so that this side never blocks.
  const ScopedFd go(open((rig->folder() + "/go").c_str(), O_RDWR | O_CLOEXEC));
  rig->Send(OnDisk(*rig, absl::StrCat("echo begun; echo up >&2; read x <go; head -c ", kBytes,
                                      " /dev/zero; exit 3")));
  rig->Send(rig->Shell("sleep 1000", 2));
  rig->Until([&] { return rig->Output(2) == "up\n" && rig->Started(2).has_value(); });
  disk_->Hang();
  const MonoTime begin = MonoNow();
  rig->Send(HoldFrame{2, (BootNow() + absl::Milliseconds(300)).micros()});
  ASSERT_EQ(write(go.get(), "go\n", 3), 3);
  rig->Until([&] { return rig->AllGoneCount(2) == 1; });
  EXPECT_LT(MonoNow() - begin, absl::Seconds(1)) << "a deadline passed meanwhile";
  // Starts another worker, and waits for the end of the first.
  rig->Send(rig->Shell("exit 4", 3));
  rig->Until([&] { return rig->Exit(3).has_value() && rig->Exit(1).has_value(); });
  EXPECT_EQ(rig->Exit(3)->exit_code, 4);
  EXPECT_EQ(rig->Exit(1)->exit_code, 3);
  rig->Stop(0);
  disk_->Resume();
  const std::string log = FolderBehind() + "/stdout.log";
  rig->UntilFiles([&] { return absl::StrContains(ReadFile(log), "are missing here]"); },
                  FolderBehind());
  const std::string text = ReadFile(log);
  EXPECT_THAT(text, StartsWith("begun\n"));
  const size_t mark = text.rfind("\n[");
  ASSERT_NE(mark, std::string::npos);
  const size_t kept = mark - std::string("begun\n").size();
  EXPECT_EQ(text.substr(mark), absl::StrCat("\n[", kBytes - kept, " bytes are missing here]\n"));
  EXPECT_LE(kept, size_t{20} << 20);
  EXPECT_GT(kept, size_t{8} << 20);
  rig = nullptr;
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("its file system does not answer"));
}

TEST_F(StandingFilesTest, AWorkerBegins) {
  SupervisorRig rig;
  disk_->Hang();
  rig.Send(OnDisk(rig, "echo begun; echo up >&2; sleep 1000"));
  rig.Until([&] { return rig.Output(2) == "up\n"; });
  // A file system that is known not to answer is no longer waited for.
  const MonoTime begin = MonoNow();
  rig.Send(OnDisk(rig, "echo up >&2; sleep 1000", 2));
  rig.Until([&] { return rig.Output(2, 2) == "up\n"; });
  EXPECT_LT(MonoNow() - begin, absl::Seconds(1));
  ASSERT_EQ(mkdir((disk_->behind() + "/logs").c_str(), 0755), 0);
  ASSERT_EQ(mkdir(FolderBehind().c_str(), 0755), 0);
  disk_->Resume();
  rig.UntilFiles([&] { return ReadFile(FolderBehind() + "/stdout.log") == "begun\n"; },
                 FolderBehind());
  rig.Stop(0);
  EXPECT_EQ(rig.Exit()->signal, SIGKILL);
}

TEST_F(StandingFilesTest, AStartThatWaitsForItsFilesCanBeStopped) {
  SupervisorRig rig;
  disk_->Hang();
  rig.Send(OnDisk(rig, "exit 3"));
  rig.Stop(0);
  ASSERT_TRUE(rig.Exit().has_value());
  EXPECT_EQ(rig.Exit()->signal, SIGKILL);
  EXPECT_EQ(rig.Exit()->pid, 0);
}

// Fault (display): The log's file system does not answer, and the supervisor is to end -> It ends
// within 10 s
TEST_F(StandingFilesTest, TheSupervisorEnds) {
  SupervisorRig rig;
  rig.Send(OnDisk(rig, "echo up >&2; sleep 1000"));
  rig.Until([&] { return rig.Output(2) == "up\n"; });
  const pid_t worker = rig.Started()->pid;
  disk_->Hang();
  const MonoTime begin = MonoNow();
  rig.Close();
  EXPECT_LT(MonoNow() - begin, absl::Seconds(10));
  EXPECT_TRUE(WaitUntilDead(worker));
}

TEST_F(StandingFilesTest, WhatCannotBeMadeFailsTheStart) {
  SupervisorRig rig;
  WriteFile(disk_->behind() + "/logs", "no folder");
  const ExitedFrame end = rig.Run(OnDisk(rig, "exit 0"));
  EXPECT_EQ(end.exec_step, "open log");
  EXPECT_EQ(end.exec_errno, ENOTDIR);
}

// Fault (worker): A worker's working directory is on a file system that does not answer -> Only
// that worker waits, and it can be ended
TEST_F(StandingFilesTest, AWorkingDirectoryHoldsUpItsWorkerAlone) {
  SupervisorRig rig;
  disk_->Hang();
  StartFrame start = rig.Shell("exit 0");
  start.working_dir = disk_->path() + "/below";
  rig.Send(start);
  EXPECT_EQ(rig.Run(rig.Shell("exit 4", 2)).exit_code, 4);
  EXPECT_FALSE(rig.Started(1).has_value());
  rig.Send(HoldFrame{1, (BootNow() + absl::Milliseconds(50)).micros()});
  rig.Until([&] { return rig.AllGoneCount(1) == 1; });
  EXPECT_EQ(rig.Exit()->signal, SIGKILL);
}

// These tests need no file system of their own.
//
// Fault (input): A FIFO is where a log file should be -> The start fails and names the FIFO
TEST(FifoTest, AFifoInALogFilesPlaceThatNobodyReadsFailsTheStart) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("exit 0");
  start.stdout_path = rig.folder() + "/fifo";
  ASSERT_EQ(mkfifo(start.stdout_path.c_str(), 0600), 0);
  const ExitedFrame end = rig.Run(start);
  EXPECT_EQ(end.exec_step, "open log");
  EXPECT_EQ(end.exec_errno, ENXIO);
}

TEST(FifoTest, OneThatSomebodyReadsIsNoLogFileEither) {
  SupervisorRig rig;
  StartFrame start = rig.Shell("exit 3");
  start.stdout_path = rig.folder() + "/fifo";
  ASSERT_EQ(mkfifo(start.stdout_path.c_str(), 0600), 0);
  const ScopedFd reader(open(start.stdout_path.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(rig.Run(start).exec_errno, EINVAL);
}

// Otherwise another user who made the directory first could make the supervisor append to a file of
// its victim.
TEST(LinkTest, ALinkInALogFilesPlaceIsNotFollowed) {
  SupervisorRig rig;
  const std::string profile = rig.folder() + "/profile";
  WriteFile(profile, "mine\n");
  for (const bool hard : {false, true}) {
    StartFrame start = rig.Shell("echo evil", hard ? 2 : 1);
    start.stdout_path = rig.folder() + "/link";
    unlink(start.stdout_path.c_str());
    ASSERT_EQ(hard ? link(profile.c_str(), start.stdout_path.c_str())
                   : symlink(profile.c_str(), start.stdout_path.c_str()),
              0);
    rig.Send(start);
    rig.Until([&] { return rig.Exit(start.group).has_value(); });
    EXPECT_EQ(rig.Exit(start.group)->exec_errno, EPERM);
  }
  EXPECT_EQ(ReadFile(profile), "mine\n");
}

TEST_F(StandingFilesTest, TheErrorFileIsReadWhereItsFileSystemAnswers) {
  SupervisorRig rig;
  const StartFrame start =
      OnDisk(rig, absl::StrCat("echo '{}' >", disk_->path(), "/logs/1/error.json; exit 1"));
  EXPECT_EQ(rig.Run(start).error_json, "{}\n");
}

}  // namespace
}  // namespace cadre::supervisor
