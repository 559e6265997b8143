#include "agent/evidence/python_stack.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

constexpr char kTorch[] = "/venv/lib/python3.11/site-packages/torch/";

std::string NoSource(const std::string&, int) { return ""; }

TEST(PythonStack, TheMainThreadOfTheLastDump) {
  const auto frames = MainThreadOf(
      "Current thread 0x01 (most recent call first):\n"
      "  File \"/me/old.py\", line 1 in old\n\n"
      "Thread 0x02 (most recent call first):\n"
      "  File \"/venv/lib/python3.11/site-packages/torch/autograd/pin.py\", line 5 in loop\n\n"
      "Current thread 0x01 [python] (most recent call first):\n"
      "  File \"/me/a \"b\", line 3.py\", line 7 in load\n"
      "  File \"/me/train.py\", line 40 in <module>\n");
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].file, "/me/a \"b\", line 3.py");
  EXPECT_EQ(frames[0].line, 7);
  EXPECT_EQ(frames[1].function, "<module>");
  EXPECT_TRUE(MainThreadOf("").empty());
  EXPECT_TRUE(MainThreadOf("no stack\n  File \"x\", line y in z\n").empty());
}

TEST(PythonStack, ARankThatWaitsInACollective) {
  const std::string c10d = std::string(kTorch) + "distributed/";
  const PythonPlace place = PlaceOf({{c10d + "distributed_c10d.py", 2806, "all_reduce"},
                                     {c10d + "c10d_logger.py", 83, "wrapper"},
                                     {"/me/train.py", 12, "step"},
                                     {"/me/train.py", 40, "<module>"}},
                                    NoSource);
  EXPECT_EQ(place.activity, v1::IN_COLLECTIVE);
  EXPECT_EQ(place.what, "all_reduce");
  EXPECT_EQ(place.where, "train.py:12 in step");
}

TEST(PythonStack, InTheBackwardPassDdpMayWaitForOthers) {
  const PythonPlace place =
      PlaceOf({{std::string(kTorch) + "autograd/graph.py", 825, "_engine_run_backward"},
               {std::string(kTorch) + "_tensor.py", 581, "backward"},
               {"/me/train.py", 12, "step"}},
              NoSource);
  EXPECT_EQ(place.activity, v1::IN_COLLECTIVE);
  EXPECT_EQ(place.what, "backward");
}

TEST(PythonStack, AReadOfADevicesValueWaitsToo) {
  const auto item = [](const std::string&, int) { return std::string("total = loss.item()"); };
  EXPECT_EQ(PlaceOf({{"/me/train.py", 12, "step"}}, item).activity, v1::IN_COLLECTIVE);
}

TEST(PythonStack, TheLoaderAndTheUsersOwnCode) {
  const PythonPlace loader = PlaceOf({{"/me/data.py", 3, "__getitem__"},
                                      {std::string(kTorch) + "utils/data/fetch.py", 52, "fetch"},
                                      {"/me/train.py", 40, "<module>"}},
                                     [](const std::string& file, int line) {
                                       EXPECT_EQ(file, "/me/data.py");
                                       EXPECT_EQ(line, 3);
                                       return std::string("time.sleep(100)");
                                     });
  EXPECT_EQ(loader.activity, v1::IN_OWN_CODE);
  EXPECT_EQ(loader.what, "time.sleep(100)");
  EXPECT_EQ(loader.where, "data.py:3 in __getitem__");
  EXPECT_EQ(PlaceOf({{"/usr/lib/python3.11/threading.py", 320, "wait"},
                     {std::string(kTorch) + "utils/data/dataloader.py", 9, "_get_data"},
                     {"/me/train.py", 40, "<module>"}},
                    NoSource)
                .activity,
            v1::IN_DATA_LOADER);
  // A wait for a lock of the standard library is the user's own, not torch's.
  EXPECT_EQ(
      PlaceOf({{"/usr/lib/python3.11/threading.py", 320, "wait"}, {"/me/train.py", 40, "<module>"}},
              NoSource)
          .activity,
      v1::IN_OWN_CODE);
}

TEST(PythonStack, WhileModulesAreImportedNobodyHangs) {
  EXPECT_EQ(PlaceOf({{"/venv/lib/python3.11/site-packages/x.py", 1, "<module>"},
                     {"<frozen importlib._bootstrap>", 241, "_call_with_frames_removed"},
                     {"/me/train.py", 1, "<module>"}},
                    NoSource)
                .activity,
            v1::IMPORTING);
}

TEST(PythonStack, NothingIsKnownOfNoStack) {
  EXPECT_EQ(PlaceOf({}, NoSource).activity, v1::PYTHON_ACTIVITY_UNSPECIFIED);
}

using ::testing::HasSubstr;

MonoTime Soon() { return MonoNow() + absl::Seconds(20); }

// A Python program that prints "ready" and then runs `body`.
class Python {
 public:
  explicit Python(const std::string& body) {
    stacks_ = absl::StrCat(::testing::TempDir(), "/stacks_", getpid());
    const std::string program =
        absl::StrCat("import faulthandler, os, sys, threading, time\n", "out = open('", stacks_,
                     "', 'a')\n"
                     "faulthandler.register(",
                     kStackSignal,
                     ", file=out, all_threads=True, chain=False)\n"
                     "def here():\n  print('ready', flush=True)\n  ",
                     body, "\nhere()\n");
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], 1);
      execlp("python3", "python3", "-c", program.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    close(ends[1]);
    char ready[6];
    ready_ = read(ends[0], ready, sizeof(ready)) > 0;
    close(ends[0]);
  }
  ~Python() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    unlink(stacks_.c_str());
  }
  bool ready() const { return ready_; }
  pid_t pid() const { return pid_; }
  const std::string& stacks() const { return stacks_; }

 private:
  std::string stacks_;
  pid_t pid_ = -1;
  bool ready_ = false;
};

TEST(PythonDump, OfASleepALoopALockAndCodeInCThatHoldsTheInterpretersLock) {
  for (const char* body : {"time.sleep(1000)", "while True: pass",
                           "l = threading.Lock(); l.acquire(); l.acquire()", "pow(7, 10 ** 9)"}) {
    const Python python(body);
    ASSERT_TRUE(python.ready()) << body;
    const auto text = PythonStackOf(python.pid(), python.stacks(), Soon());
    ASSERT_OK(text) << body;
    const auto frames = MainThreadOf(*text);
    ASSERT_FALSE(frames.empty()) << body << "\n" << *text;
    EXPECT_EQ(frames.front().function, "here") << body << "\n" << *text;
    // A second request returns only the new stack.
    const auto again = PythonStackOf(python.pid(), python.stacks(), Soon());
    ASSERT_OK(again);
    EXPECT_EQ(again->find("Current thread", 1), std::string::npos);
  }
}

TEST(PythonDump, AProcessThatDoesNotHandleTheSignalIsLeftAlone) {
  const Python python("time.sleep(1000)");
  ASSERT_TRUE(python.ready());
  const pid_t other = fork();
  if (other == 0) {
    signal(kStackSignal, SIG_DFL);
    for (;;) pause();
  }
  EXPECT_THAT(PythonStackOf(other, python.stacks(), Soon()),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("does not handle")));
  EXPECT_EQ(waitpid(other, nullptr, WNOHANG), 0) << "it was killed";
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
}

TEST(PythonDump, NothingWithoutAFileOrAnAnswer) {
  const Python python("time.sleep(1000)");
  ASSERT_TRUE(python.ready());
  EXPECT_THAT(PythonStackOf(python.pid(), "/no/such/file", Soon()),
              StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(PythonStackOf(python.pid(), python.stacks(), MonoNow()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  kill(python.pid(), SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(python.pid(), &status, WUNTRACED), python.pid());
  // A stopped process is not asked: it would answer once continued, to a later request.
  EXPECT_THAT(PythonStackOf(python.pid(), python.stacks(), Soon()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is stopped")));
}

TEST(PythonDump, TwoWhoAskAtOnceGetAWholeStackEach) {
  const Python python("time.sleep(1000)");
  ASSERT_TRUE(python.ready());
  std::vector<absl::StatusOr<std::string>> answers(4, std::string());
  std::vector<std::thread> askers;
  for (auto& answer : answers) {
    askers.emplace_back([&] { answer = PythonStackOf(python.pid(), python.stacks(), Soon()); });
  }
  for (std::thread& asker : askers) asker.join();
  for (const auto& answer : answers) {
    ASSERT_OK(answer);
    EXPECT_EQ(answer->find("Current thread", 1), std::string::npos) << *answer;
    EXPECT_EQ(MainThreadOf(*answer).size(), 2u) << *answer;
  }
}

TEST(PythonDump, WhatAFatalSignalLeaves) {
  const Python python("faulthandler.enable(out); os.abort()");
  ASSERT_TRUE(python.ready());
  siginfo_t ended;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(python.pid()), &ended, WEXITED | WNOWAIT), 0);
  const std::string text = FatalStackIn(python.stacks());
  const auto frames = MainThreadOf(text);
  ASSERT_FALSE(frames.empty()) << text;
  EXPECT_EQ(frames.front().function, "here") << text;
  EXPECT_EQ(FatalStackIn("/no/such/file"), "");
}

TEST(PythonDump, OfAProcessThatHasEnded) {
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  waitpid(gone, nullptr, 0);
  EXPECT_THAT(PythonStackOf(gone, "/no/such/file", Soon()), StatusIs(absl::StatusCode::kNotFound));
}

class SourceLineTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string File(const std::string& text) {
    const std::string path = directory_ + "/train.py";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::string Line(const std::string& path, int number) {
    return SourceLine(getpid(), path, number);
  }

  const std::string directory_ = ::testing::TempDir() + "/source_" + std::to_string(getpid());
};

TEST_F(SourceLineTest, OfAFile) {
  const std::string path = File("import os\n\n    x = 1  \nlast");
  EXPECT_EQ(Line(path, 1), "import os");
  EXPECT_EQ(Line(path, 2), "");
  EXPECT_EQ(Line(path, 3), "x = 1");
  EXPECT_EQ(Line(path, 4), "last");
  EXPECT_EQ(Line(path, 5), "");
  EXPECT_EQ(Line(path, 0), "");
}

TEST_F(SourceLineTest, OfWhatIsNoFileOrIsNotThere) {
  EXPECT_EQ(Line(directory_, 1), "");
  EXPECT_EQ(Line(directory_ + "/none", 1), "");
  const std::string pipe = directory_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(Line(pipe, 1), "");
}

TEST_F(SourceLineTest, APathThatIsNotAbsoluteIsTakenFromTheProcesssDirectory) {
  File("here");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(directory_);
  EXPECT_EQ(Line("train.py", 1), "here");
  std::filesystem::current_path(before);
}

TEST_F(SourceLineTest, IsShortUtf8InOneLine) {
  EXPECT_EQ(Line(File("na\xefve = 'x\x01'\n"), 1), "na\xef\xbf\xbdve = 'x\\x01'");
  const std::string text = Line(File(std::string(100000, 'x') + "\nnext"), 1);
  EXPECT_EQ(text.size(), kMaxSourceLineBytes);
  EXPECT_EQ(Line(File(std::string(100000, 'x') + "\nnext"), 2), "next");
}

TEST_F(SourceLineTest, AFileIsReadToItsLimit) {
  EXPECT_EQ(Line(File(std::string(kMaxSourceBytes + (64 << 10), '\n') + "far"),
                 static_cast<int>(kMaxSourceBytes + (64 << 10) + 1)),
            "");
}

}  // namespace
}  // namespace cadre::agent
