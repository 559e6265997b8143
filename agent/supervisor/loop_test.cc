// Workers that outlive their agent, with the real supervisor.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "agent/supervisor/output.h"
#include "agent/supervisor/processes/process_scan.h"
#include "agent/supervisor/supervisor_rig.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using ::testing::ElementsAre;

// Longer than any test.
constexpr absl::Duration kLong = absl::Hours(1);

bool Alive(pid_t pid) {
  const auto info = InspectProcess(pid);
  return info.has_value() && info->state != 'Z';
}

// A worker that prints "up", and then what is written to the fifo "in"; "end" ends it with status
// 7.
class KeepTest : public ::testing::Test {
 protected:
  void StartReader() {
    ASSERT_EQ(mkfifo((rig_.folder() + "/in").c_str(), 0600), 0);
    StartFrame start = rig_.Shell(
        "exec 4<>in; echo up; while read line <&4; do echo $line;"
        "test $line != end || { echo last words >&2; exit 7; }; done");
    start.stdout_path = rig_.folder() + "/log";
    rig_.Send(start);
    rig_.Lines(1);
  }
  void Tell(const std::string& word) {
    const int in = open((rig_.folder() + "/in").c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(in, 0);
    const std::string line = word + "\n";
    ASSERT_EQ(write(in, line.data(), line.size()), static_cast<ssize_t>(line.size()));
    close(in);
  }
  pid_t WorkerPid(uint64_t group = 1) {
    rig_.Until([&] { return rig_.Started(group).has_value(); });
    return rig_.Started(group)->pid;
  }
  void AwaitLog(const std::string& text) {
    rig_.UntilFiles([&] { return ReadFile(rig_.folder() + "/log") == text; });
    EXPECT_EQ(ReadFile(rig_.folder() + "/log"), text);
  }

  SupervisorRig rig_;
};

TEST_F(KeepTest, TheDirectoryOfAnAgentThatDiedIsRemoved) {
  const std::string directory = rig_.folder() + "/agent";
  ASSERT_EQ(mkdir(directory.c_str(), 0700), 0);
  WriteFile(directory + "/token", "secret");
  rig_.Send(DirectoryFrame{directory});
  StartReader();
  rig_.Die();
  EXPECT_NE(access(directory.c_str(), F_OK), 0);
}

TEST_F(KeepTest, TheDirectoryStaysForAnAgentThatTakesOver) {
  const std::string directory = rig_.folder() + "/agent";
  ASSERT_EQ(mkdir(directory.c_str(), 0700), 0);
  rig_.Send(DirectoryFrame{directory});
  rig_.Keep(kLong);
  StartReader();
  rig_.Die();
  rig_.Adopt();
  EXPECT_EQ(access(directory.c_str(), F_OK), 0);
}

TEST_F(KeepTest, AnotherAgentCarriesOn) {
  rig_.Keep(kLong);
  StartReader();
  const pid_t pid = WorkerPid();
  rig_.Die();
  Tell("alone");
  AwaitLog("up\nalone\n");
  const AdoptedFrame inventory = rig_.Adopt();
  EXPECT_THAT(inventory.groups, ElementsAre(1));
  EXPECT_EQ(inventory.hold_until_us, 0);
  EXPECT_FALSE(inventory.stopping);
  rig_.Until([&] { return rig_.Started().has_value(); });
  EXPECT_EQ(WorkerPid(), pid);
  EXPECT_EQ(rig_.client().pid(), rig_.ready().pid);
  rig_.Until([&] { return rig_.Output(kStdoutStream) == "alone\n"; });
  Tell("together");
  rig_.Until([&] { return rig_.Output(kStdoutStream) == "alone\ntogether\n"; });
  EXPECT_TRUE(Alive(pid));
  rig_.Stop();
  EXPECT_FALSE(Alive(pid));
}

TEST_F(KeepTest, AndAThirdOne) {
  rig_.Keep(kLong);
  StartReader();
  for (int i = 0; i < 2; ++i) {
    rig_.Die();
    rig_.Adopt();
  }
  rig_.Until([&] { return rig_.Started().has_value(); });
  rig_.Stop();
}

TEST_F(KeepTest, AnExitMeanwhileIsReportedAsItWas) {
  rig_.Keep(kLong);
  StartReader();
  const pid_t pid = WorkerPid();
  rig_.Die();
  Tell("end");
  ASSERT_TRUE(WaitUntilDead(pid));
  EXPECT_THAT(rig_.Adopt().groups, ElementsAre(1));
  rig_.Until([&] { return rig_.Exit().has_value(); });
  EXPECT_EQ(rig_.Exit()->exit_code, 7);
  EXPECT_EQ(rig_.Exit()->pid, pid);
  EXPECT_EQ(rig_.Exit()->last_lines, "last words\n");
  EXPECT_EQ(rig_.Output(kStdoutStream), "end\n");
}

TEST_F(KeepTest, AnExitBeforeIsReportedAgain) {
  rig_.Keep(kLong);
  StartReader();
  StartFrame no_log = rig_.Shell("exit 0", 3);
  no_log.stdout_path = "/proc/none/log";
  rig_.Run(no_log);
  EXPECT_EQ(rig_.Run(rig_.Shell("exit 3", 2)).exit_code, 3);
  rig_.Die();
  EXPECT_THAT(rig_.Adopt().groups, ElementsAre(1, 3, 2)) << "one was never forked";
  rig_.Until([&] { return rig_.Exit(2).has_value() && rig_.Exit(3).has_value(); });
  EXPECT_EQ(rig_.Exit(2)->exit_code, 3);
  EXPECT_EQ(rig_.Exit(3)->exec_step, "open log");
  EXPECT_FALSE(rig_.Exit(1).has_value());
}

TEST_F(KeepTest, AStopThatIsUnderWayGoesOn_AndWhoIsGoneIsToldOfAgain) {
  rig_.Keep(kLong);
  rig_.Send(rig_.Shell("echo up; exec sleep 1000"));
  rig_.Send(rig_.Shell("trap '' TERM; echo up; while :; do sleep 0.01; done", 2));
  rig_.Lines(1);
  rig_.Lines(1, 2);
  const pid_t pid = WorkerPid(2);
  rig_.Send(StopFrame{2, 3600000});
  rig_.Stop(3600000);
  for (int i = 0; i < 2; ++i) {
    rig_.Die();
    const AdoptedFrame inventory = rig_.Adopt();
    EXPECT_THAT(inventory.groups, ElementsAre(2, 1));
    EXPECT_TRUE(inventory.stopping);
    rig_.Until([&] { return rig_.Exit().has_value(); });
    EXPECT_EQ(rig_.Exit()->signal, SIGTERM);
    // A grace longer than what is left changes nothing.
    rig_.Send(StopFrame{2, 7200000});
    rig_.Stop(3600000);
    EXPECT_TRUE(Alive(pid));
  }
  rig_.Send(rig_.Shell("echo up; exec sleep 1000", 3));
  rig_.Lines(1, 3);
  rig_.Die();
  EXPECT_THAT(rig_.Adopt().groups, ElementsAre(2, 3)) << "the first is of a time before";
}

TEST_F(KeepTest, OutputMeanwhileIsBounded) {
  rig_.Keep(kLong);
  StartReader();
  constexpr size_t kBytes = 64 << 20;
  StartFrame start =
      rig_.Shell(absl::StrCat("read go <go; head -c ", kBytes, " /dev/zero; echo end >&2"), 2);
  start.stdout_path = rig_.folder() + "/zeros";
  ASSERT_EQ(mkfifo((rig_.folder() + "/go").c_str(), 0600), 0);
  rig_.Send(start);
  rig_.Until([&] { return rig_.Started(2).has_value(); });
  const pid_t pid = WorkerPid(2);
  rig_.Die();
  const int go = open((rig_.folder() + "/go").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(write(go, "\n", 1), 1);
  ASSERT_TRUE(WaitUntilDead(pid));
  close(go);
  rig_.Adopt();
  rig_.Until([&] { return rig_.Exit(2).has_value(); });
  EXPECT_GT(rig_.Dropped(kStdoutStream, 2), 0u);
  EXPECT_EQ(rig_.Output(kStdoutStream, 2).size() + rig_.Dropped(kStdoutStream, 2), kBytes);
  EXPECT_EQ(ReadFile(start.stdout_path).size(), kBytes) << "the file is always whole";
}

TEST_F(KeepTest, WhenNobodyComesTheyEnd) {
  rig_.Keep(absl::Milliseconds(100));
  StartReader();
  const pid_t pid = WorkerPid();
  const MonoTime begin = MonoNow();
  rig_.Die();
  EXPECT_TRUE(WaitUntilDead(pid));
  EXPECT_GE(MonoNow() - begin, absl::Milliseconds(100));
  EXPECT_TRUE(WaitUntilDead(rig_.ready().pid));
  EXPECT_NE(access(rig_.KeepPath().c_str(), F_OK), 0);
}

TEST_F(KeepTest, AGoodbyeEndsThemAtOnce) {
  rig_.Keep(kLong);
  StartReader();
  const pid_t pid = WorkerPid();
  rig_.Close();
  EXPECT_FALSE(Alive(pid));
}

TEST_F(KeepTest, AfterAnAdoptionToo) {
  rig_.Keep(kLong);
  StartReader();
  const pid_t pid = WorkerPid();
  rig_.Die();
  rig_.Adopt();
  rig_.Close();
  EXPECT_FALSE(Alive(pid));
}

TEST_F(KeepTest, WithoutWorkersThereIsNothingToWaitFor) {
  rig_.Keep(kLong);
  StartReader();
  rig_.Stop();
  rig_.Die();
  EXPECT_TRUE(WaitUntilDead(rig_.ready().pid));
}

TEST_F(KeepTest, NotAskedForAnyLonger) {
  rig_.Keep(kLong);
  rig_.Keep(absl::ZeroDuration());
  StartReader();
  const pid_t pid = WorkerPid();
  rig_.Die();
  EXPECT_TRUE(WaitUntilDead(pid));
}

TEST_F(KeepTest, AnOrderToStopIsCarriedOutAlone) {
  rig_.Keep(kLong);
  rig_.Send(rig_.Shell("trap '' TERM; echo up; while :; do sleep 0.01; done"));
  rig_.Lines(1);
  const pid_t pid = WorkerPid();
  rig_.Send(StopFrame{1, 50});
  rig_.Die();
  EXPECT_TRUE(WaitUntilDead(pid));
  EXPECT_TRUE(WaitUntilDead(rig_.ready().pid));
}

TEST_F(KeepTest, TheHoldIsPassedOn) {
  rig_.Keep(kLong);
  StartReader();
  const int64_t until_us = (BootNow() + kLong).micros();
  rig_.Send(HoldFrame{1, until_us});
  rig_.Die();
  EXPECT_EQ(rig_.Adopt().hold_until_us, until_us);
}

// A supervisor started by an agent of 0.3 uses its protocol, also with an adopting agent.
TEST(KeepOfBeforeTest, AnotherAgentCarriesOn) {
  SupervisorRig rig(kFramesBefore);
  rig.Send(DirectoryFrame{rig.folder()});
  rig.Keep(kLong);
  rig.Send(rig.Shell("echo up; exec sleep 1000"));
  rig.Lines(1);
  const int64_t until_us = (BootNow() + kLong).micros();
  rig.Send(HoldFrame{1, until_us});
  rig.Die();
  const AdoptedFrame inventory = rig.Adopt();
  EXPECT_THAT(inventory.groups, ElementsAre(1));
  EXPECT_EQ(inventory.hold_until_us, until_us);
  StartFrame start = rig.Shell("exit 7", 2);
  start.warm.directory = rig.folder();
  EXPECT_EQ(rig.Run(start).exit_code, 7);
  rig.Stop();
}

TEST_F(KeepTest, OnlyWhoKnowsTheTokenAndOnlyOnce) {
  rig_.Keep(kLong);
  StartReader();
  struct stat found = {};
  ASSERT_EQ(stat(rig_.KeepPath().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  const auto adopt = [&](const std::string& token) {
    AdoptedFrame inventory;
    return Client::Adopt(rig_.KeepPath(), token, kFramesVersion, &inventory,
                         absl::Milliseconds(100))
        .status();
  };
  EXPECT_THAT(adopt(kKeepToken), StatusIs(absl::StatusCode::kUnavailable)) << "its agent lives";
  rig_.Die();
  EXPECT_THAT(adopt("another"), StatusIs(absl::StatusCode::kUnavailable));
  rig_.Adopt();
  EXPECT_THAT(adopt(kKeepToken), StatusIs(absl::StatusCode::kUnavailable)) << "it has a new one";
  EXPECT_TRUE(Alive(rig_.ready().pid));
}

// The earlier agent is still ending when the next one comes.
TEST_F(KeepTest, WhoComesEarlyWaits) {
  rig_.Keep(kLong);
  StartReader();
  const int early = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  ASSERT_LT(rig_.KeepPath().size(), sizeof(address.sun_path));
  memcpy(address.sun_path, rig_.KeepPath().data(), rig_.KeepPath().size());
  ASSERT_EQ(connect(early, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string hello = EncodeFrame(AdoptFrame{kKeepToken});
  ASSERT_EQ(send(early, hello.data(), hello.size(), 0), static_cast<ssize_t>(hello.size()));
  // Once the supervisor has answered this it has read the frame before it.
  rig_.Run(rig_.Shell("exit 0", 2));
  rig_.Die();
  frames::FrameReader reader(kMaxFrameBytes);
  bool adopted = false;
  char chunk[4096];
  while (!adopted) {
    const ssize_t n = recv(early, chunk, sizeof(chunk), 0);
    ASSERT_GT(n, 0);
    reader.Append(absl::string_view(chunk, static_cast<size_t>(n)));
    for (auto frame = NextFrame(reader); frame.ok() && frame->has_value();
         frame = NextFrame(reader)) {
      adopted = adopted || std::holds_alternative<AdoptedFrame>(**frame);
    }
  }
  close(early);
}

}  // namespace
}  // namespace cadre::supervisor
