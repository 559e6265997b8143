#include "agent/evidence/python_dump.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "agent/evidence/python_stack.h"
#include "base/clock.h"
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
    const std::string text = PythonStackOf(python.pid(), python.stacks(), Soon());
    const auto frames = MainThreadOf(text);
    ASSERT_FALSE(frames.empty()) << body << "\n" << text;
    EXPECT_EQ(frames.front().function, "here") << body << "\n" << text;
    // Asked again it gives the new stack alone.
    EXPECT_EQ(PythonStackOf(python.pid(), python.stacks(), Soon()).find("Current thread", 1),
              std::string::npos);
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
  EXPECT_EQ(PythonStackOf(other, python.stacks(), Soon()), "");
  EXPECT_EQ(waitpid(other, nullptr, WNOHANG), 0) << "it was killed";
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
}

TEST(PythonDump, NothingWithoutAFileOrAnAnswer) {
  const Python python("time.sleep(1000)");
  ASSERT_TRUE(python.ready());
  EXPECT_EQ(PythonStackOf(python.pid(), "/no/such/file", Soon()), "");
  kill(python.pid(), SIGSTOP);
  EXPECT_EQ(PythonStackOf(python.pid(), python.stacks(), MonoNow() + absl::Milliseconds(5)), "");
}

}  // namespace
}  // namespace cadre::agent
