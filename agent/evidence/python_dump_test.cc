#include "agent/evidence/python_dump.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/evidence/python_stack.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;

MonoTime Soon() { return MonoNow() + absl::Seconds(20); }

// A Python program that says "ready" and then does what it is told.
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
    // Asked again it gives the new stack alone.
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
  // It is not asked: it would answer when it goes on, to whoever asks then.
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

}  // namespace
}  // namespace cadre::agent
