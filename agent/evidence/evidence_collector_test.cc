// With real processes: one stopped, one in a loop, one asleep.
#include "agent/evidence/evidence_collector.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/evidence/native_stacks.h"
#include "agent/evidence/python_dump.h"
#include "agent/run_files.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/progress/progress_page.h"

namespace cadre::agent {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr std::chrono::seconds kPatience(60);

// A child in a session of its own, as workers are; killed with the object.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(fork()) {
    if (pid_ != 0) return;
    setsid();
    body();
    _exit(0);
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  const pid_t pid_;
};

class EvidenceCollectorTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(directory_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  EvidenceRequest::Worker Worker(uint32_t local_rank, pid_t pid) {
    return {local_rank,
            4 + local_rank,
            pid,
            local_rank == 0,
            directory_ + "/evidence_" + std::to_string(local_rank),
            {directory_ + "/stderr.log"}};
  }

  // Runs it to its end; what was found.
  std::vector<v1::RankEvidence> Collect(std::vector<EvidenceRequest::Worker> workers,
                                        bool cancel = false, NativeStacksOf native = NativeStacks) {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<v1::RankEvidence> found;
    bool done = false;
    EvidenceCollector collector(
        [&](AgentEvent event) {
          const std::lock_guard<std::mutex> lock(mutex);
          if (auto* ranks = std::get_if<EvidenceFound>(&event)) found = std::move(ranks->ranks);
          done = done || std::holds_alternative<EvidenceDone>(event);
          changed.notify_all();
        },
        std::move(native));
    collector.Start({3, directory_, std::move(workers)});
    if (cancel) collector.Cancel();
    std::unique_lock<std::mutex> lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, kPatience, [&] { return done; }));
    return found;
  }

  std::string Read(const std::string& path) {
    std::stringstream content;
    content << std::ifstream(path).rdbuf();
    return content.str();
  }

  std::string directory_ = ::testing::TempDir() + "/collector_XXXXXX";
};

TEST_F(EvidenceCollectorTest, TellsStoppedLoopingAndSleepingApart) {
  Child stopped([] { raise(SIGSTOP); });
  Child looping([] {
    for (volatile int turns = 0;;) turns = turns + 1;
  });
  Child sleeping([] {
    for (;;) pause();
  });
  ASSERT_EQ(waitpid(stopped.pid(), nullptr, WUNTRACED), stopped.pid());
  auto page = progress::ProgressPage::Create(directory_, {3, 6, 8});
  ASSERT_OK(page);
  (*page)->Begin(41, 2, Buffer{});
  (*page)->Enter(WorkerPhase::kWaiting, 41, 2);
  std::ofstream(directory_ + "/stderr.log") << "the last line\n";
  const auto found =
      Collect({Worker(0, stopped.pid()), Worker(1, looping.pid()), Worker(2, sleeping.pid())});
  ASSERT_THAT(found, SizeIs(3));
  EXPECT_EQ(found[0].state(), "T");
  EXPECT_EQ(found[0].last_lines(), "the last line\n");
  EXPECT_EQ(found[0].phase(), v1::RANK_PHASE_UNSPECIFIED);
  EXPECT_GT(found[1].cpu(), 0.5);
  EXPECT_EQ(found[2].state(), "S");
  EXPECT_LT(found[2].cpu(), 0.5);
  EXPECT_EQ(found[2].phase(), v1::WAITING);
  EXPECT_EQ(found[2].bucket(), 2);
  EXPECT_EQ(found[2].collective(), 1u);
  EXPECT_TRUE(found[2].collective_running());
  EXPECT_THAT(found[2].summary(), HasSubstr("step 41, waits for bucket 2 since"));
  EXPECT_THAT(Read(found[0].file()),
              AllOf(HasSubstr("rank 4 in generation 3, over its timeout: pid "),
                    HasSubstr("State:\tT (stopped)"), HasSubstr("native stacks of process")));
  EXPECT_THAT(Read(found[2].file()), HasSubstr("all-reduce 1: step 41, bucket 2"));
}

TEST_F(EvidenceCollectorTest, AProcessThatIsGone_IsSaidToBe) {
  pid_t gone = 0;
  {
    Child child([] {});
    gone = child.pid();
  }
  const auto found = Collect({Worker(0, gone)});
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].state(), "");
  EXPECT_THAT(found[0].summary(), HasSubstr("gone"));
}

TEST_F(EvidenceCollectorTest, Cancelled_StillReportsWhatItFound) {
  Child sleeping([] {
    for (;;) pause();
  });
  EXPECT_THAT(Collect({Worker(0, sleeping.pid())}, true), SizeIs(1));
}

// gdb reads the symbols of PyTorch's libraries for longer than anybody waits.
TEST_F(EvidenceCollectorTest, WhatInterpretersSayWaitsForNoNativeStacks) {
  static int stack_file = -1;
  stack_file = open(StackFilePath(directory_, 3, 4).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ASSERT_GE(stack_file, 0);
  const auto sleep = [] {
    for (;;) pause();
  };
  Child other(sleep);
  // It is inherited.
  signal(kStackSignal,
         [](int) { dprintf(stack_file, "  File \"/me/train.py\", line 40 in main\n"); });
  Child python(sleep);
  signal(kStackSignal, SIG_DFL);
  const MonoTime begin = MonoNow();
  std::vector<pid_t> asked;
  const auto native = [&](pid_t process, MonoTime deadline, const std::atomic<bool>&) {
    asked.push_back(process);
    EXPECT_THAT(Read(Worker(0, 0).file), HasSubstr("line 40 in main"));
    EXPECT_THAT(Read(Worker(1, 0).file), HasSubstr("== process"));
    const absl::Duration limit = process == python.pid() ? kStacksTimeBesidePython : kStacksTime;
    EXPECT_GE(deadline, begin + limit);
    EXPECT_LE(deadline, MonoNow() + limit);
    return absl::StrCat("native of ", process, "\n");
  };
  Collect({Worker(0, python.pid()), Worker(1, other.pid())}, false, native);
  EXPECT_THAT(asked, ElementsAre(other.pid(), python.pid()));
  EXPECT_THAT(Read(Worker(0, 0).file), AllOf(HasSubstr("line 40 in main"),
                                             HasSubstr(absl::StrCat("native of ", python.pid()))));
}

TEST_F(EvidenceCollectorTest, WhereAPythonProgramWasWhenAFatalSignalCame) {
  const PageOwner owner{3, 4, 8};
  const LookedAtWorker worker{0, 4, 17};
  std::ofstream(StackFilePath(directory_, 3, 4))
      << "Thread 0x1 (most recent call first):\n  File \"/me/old.py\", line 1 in old\n\n"
         "Fatal Python error: Aborted\n\n"
         "Thread 0x2 (most recent call first):\n"
         "  File \"/v/site-packages/torch/distributed/c10d.py\", line 9 in all_reduce\n"
         "  File \"/me/train.py\", line 40 in main\n";
  v1::WorkerExit aborted, killed;
  aborted.set_signal(SIGABRT);
  killed.set_signal(SIGKILL);
  const auto place = LastPlace(directory_, owner, worker, aborted);
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->summary(), "pid 17: gone; Python: waits in all_reduce, train.py:40 in main");
  // What it started may have died of it; the worker itself did not.
  EXPECT_FALSE(LastPlace(directory_, owner, worker, v1::WorkerExit()).has_value());
  EXPECT_FALSE(LastPlace(directory_, owner, worker, killed).has_value());
  EXPECT_FALSE(LastPlace(directory_, {3, 5, 8}, worker, aborted).has_value());
}

TEST_F(EvidenceCollectorTest, WhereAPythonProgramEndedItself) {
  std::ofstream(StackFilePath(directory_, 3, 4))
      << "sys.exit(3) in process 17\nStack (most recent call first):\n"
         "  File \"/run/warm/sitecustomize.py\", line 9 in exit\n"
         "  File \"/usr/lib/python3.11/argparse.py\", line 90 in error\n"
         "  File \"/me/train.py\", line 8 in main\n"
         "Thread 0x1 (most recent call first):\n  File \"/me/other.py\", line 1 in clean_up\n"
         "sys.exit(3) in process 18\nStack (most recent call first):\n"
         "  File \"/me/child.py\", line 1 in child\n";
  const PageOwner owner{3, 4, 8};
  v1::WorkerExit exit;
  exit.set_exit_code(3);
  const auto place = LastPlace(directory_, owner, {0, 4, 17}, exit);
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->python_where(), "train.py:8 in main");
  exit.set_exit_code(2);
  EXPECT_FALSE(LastPlace(directory_, owner, {0, 4, 17}, exit).has_value()) << "one that was caught";
  exit.set_exit_code(3);
  EXPECT_FALSE(LastPlace(directory_, owner, {0, 4, 19}, exit).has_value());
}

TEST(NativeStacks, EndAtTheDeadline) {
  Child sleeping([] {
    for (;;) pause();
  });
  const std::atomic<bool> cancelled{false};
  EXPECT_THAT(NativeStacks(sleeping.pid(), MonoNow(), cancelled),
              ::testing::AnyOf(HasSubstr("was not done in time"), HasSubstr("no native stacks")));
}

}  // namespace
}  // namespace cadre::agent
