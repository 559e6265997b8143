// The two collectors with real processes: running Python, stopped, in a loop, asleep.
#include "agent/evidence/evidence_collector.h"

#include <fcntl.h>
#include <poll.h>
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
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "agent/evidence/native_stacks.h"
#include "agent/evidence/python_stack.h"
#include "agent/run_files.h"
#include "base/clock.h"
#include "base/progress_snapshot.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker_runtime/progress/progress_page.h"

namespace cadre::agent {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr std::chrono::seconds kTestTimeout(60);

// A child in its own session, like a worker; killed with the object.
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

  // Runs the collector to its end and returns its findings.
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
    EXPECT_TRUE(changed.wait_for(lock, kTestTimeout, [&] { return done; }));
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
  // As if the user had named a file for the output.
  std::ofstream(directory_ + "/named") << "the last line\n";
  std::filesystem::create_symlink(directory_ + "/named", directory_ + "/stderr.log");
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

// The collector reports Python stacks before gdb has ended, because gdb needs seconds to read the
// symbols of PyTorch's libraries.
TEST_F(EvidenceCollectorTest, WhatInterpretersSayWaitsForNoNativeStacks) {
  static int stack_file = -1;
  stack_file = open(StackFilePath(directory_, 3, 4).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ASSERT_GE(stack_file, 0);
  const auto sleep = [] {
    for (;;) pause();
  };
  Child other(sleep);
  // The child process inherits the handler.
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

// Fault (python): A Python program dies of SIGSEGV -> The verdict names the line of code where that
// happened
TEST_F(EvidenceCollectorTest, WhereAPythonProgramWasWhenAFatalSignalCame) {
  const PageOwner owner{3, 4, 8};
  const ProbedWorker worker{0, 4, 17};
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
  // A process that the worker started may have died of it; the worker itself did not.
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

// The collector of requested stacks.

constexpr absl::Duration kAnswerTimeout = absl::Seconds(60);
constexpr uint64_t kGeneration = 3;

class StackCollectorTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(directory_.data()), nullptr); }
  void TearDown() override {
    for (const pid_t child : children_) {
      kill(-child, SIGKILL);  // including what a shell has started
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    std::filesystem::remove_all(directory_);
  }

  // A child in its own session, like a worker.
  template <typename Body>
  pid_t Child(const Body& body) {
    const pid_t child = fork();
    if (child == 0) {
      setsid();
      body();
      _exit(127);
    }
    children_.push_back(child);
    return child;
  }
  pid_t Sleeping() {
    return Child([] {
      for (;;) pause();
    });
  }
  // A process that handles the signal but writes nothing.
  pid_t Silent(uint32_t rank) {
    std::ofstream(StackFilePath(directory_, kGeneration, static_cast<int>(rank))).flush();
    // Set before the fork: without a handler the process would not be asked.
    const auto before = signal(kStackSignal, [](int) {});
    const pid_t child = Sleeping();
    signal(kStackSignal, before);
    return child;
  }
  // A Python program that handles the signal as Cadre's hook does, once it has called `here`; or
  // the shell that has started it and waits.
  pid_t Python(uint32_t rank, bool behind_shell = false) {
    const std::string program = directory_ + "/program.py";
    std::ofstream(program) << "import faulthandler, sys, threading, time\n"
                              "out = open(sys.argv[1], 'a')\n"
                              "faulthandler.register("
                           << kStackSignal
                           << ", file=out, all_threads=True, chain=False)\n"
                              "threading.Thread(target=time.sleep, args=(1000,), daemon=True)"
                              ".start()\n"
                              "def here():\n"
                              "    print('here', flush=True); time.sleep(1000)  # there\n"
                              "here()\n";
    const std::string stacks = StackFilePath(directory_, kGeneration, static_cast<int>(rank));
    int said[2];
    EXPECT_EQ(pipe2(said, O_CLOEXEC), 0);
    const ScopedFd reads(said[0]), writes(said[1]);
    const pid_t child = Child([&] {
      dup2(writes.get(), STDOUT_FILENO);
      if (behind_shell) {
        execlp("sh", "sh", "-c", "python3 $0 $1; exit $?", program.c_str(), stacks.c_str(),
               static_cast<char*>(nullptr));
      }
      execlp("python3", "python3", program.c_str(), stacks.c_str(), static_cast<char*>(nullptr));
    });
    pollfd here = {reads.get(), POLLIN, 0};
    EXPECT_EQ(poll(&here, 1, static_cast<int>(absl::ToInt64Milliseconds(kAnswerTimeout))), 1);
    return child;
  }

  StackRequest Request(std::vector<ProbedWorker> workers) {
    StackRequest request;
    request.generation = kGeneration;
    request.call = 7;
    request.directory = directory_;
    request.workers = std::move(workers);
    return request;
  }
  v1::NodeStacks Ask(const StackRequest& request) {
    v1::NodeStacks answer;
    absl::Notification answered;
    StackCollector collector([&](AgentEvent event) {
      answer = std::move(std::get<StacksFound>(event).stacks);
      answered.Notify();
    });
    collector.Ask(request);
    EXPECT_TRUE(answered.WaitForNotificationWithTimeout(kAnswerTimeout));
    return answer;
  }

  std::string directory_ = ::testing::TempDir() + "/stacks_XXXXXX";
  std::vector<pid_t> children_;
};

TEST_F(StackCollectorTest, EachWorkerIsToldOf_AndGoesOn) {
  const pid_t python = Python(4), sleeping = Sleeping(), stopped = Sleeping();
  kill(stopped, SIGSTOP);
  ASSERT_EQ(waitpid(stopped, nullptr, WUNTRACED), stopped);
  const v1::NodeStacks answer =
      Ask(Request({{0, 4, python}, {1, 5, sleeping}, {2, 6, stopped}, {3, 7, 0}}));
  EXPECT_EQ(answer.call(), 7u);
  ASSERT_EQ(answer.ranks_size(), 4) << answer.why();
  const v1::RankStack& program = answer.ranks(0);
  EXPECT_EQ(program.no_python(), "");
  ASSERT_EQ(program.frames_size(), 2) << program.DebugString();
  EXPECT_EQ(program.frames(0).function(), "here");
  EXPECT_EQ(program.frames(0).source(), "print('here', flush=True); time.sleep(1000)  # there");
  EXPECT_EQ(program.frames(1).function(), "<module>");
  EXPECT_EQ(program.evidence().rank(), 4);
  EXPECT_EQ(program.evidence().python(), v1::IN_OWN_CODE);
  EXPECT_EQ(program.text(), "");
  EXPECT_THAT(answer.ranks(1).no_python(), HasSubstr("does not handle"));
  EXPECT_EQ(answer.ranks(1).evidence().state(), "S");
  EXPECT_THAT(answer.ranks(2).no_python(), HasSubstr("is stopped"));
  EXPECT_EQ(answer.ranks(2).evidence().state(), "T");
  EXPECT_THAT(answer.ranks(3).no_python(), HasSubstr("no process"));
  for (const pid_t child : {python, sleeping}) {
    EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "it was ended";
  }
}

// Asked one after the other they would leave no time for the last.
TEST_F(StackCollectorTest, AnInterpreterThatAShellHasStartedIsTheProgram) {
  const pid_t shell = Python(4, /*behind_shell=*/true);
  const v1::NodeStacks answer = Ask(Request({{0, 4, shell}}));
  ASSERT_EQ(answer.ranks_size(), 1) << answer.why();
  EXPECT_EQ(answer.ranks(0).no_python(), "");
  ASSERT_EQ(answer.ranks(0).frames_size(), 2) << answer.ranks(0).DebugString();
  EXPECT_THAT(answer.ranks(0).frames(0).source(), HasSubstr("time.sleep(1000)  # there"));
  EXPECT_EQ(answer.ranks(0).evidence().python(), v1::IN_OWN_CODE);
}

// Fault (python): During a hang some interpreters do not answer, or workers have data-loading
// processes -> All workers are asked at the same time, each worker's own process first, so that a
// silent one delays no other
TEST_F(StackCollectorTest, ThoseThatDoNotAnswerTakeNoTimeOfTheOthers) {
  std::vector<ProbedWorker> workers;
  for (uint32_t rank = 0; rank < 8; ++rank) workers.push_back({rank, rank, Silent(rank)});
  ASSERT_GT(8 * kStackAnswerTime, kStackAnswersTime);
  workers.push_back({8, 8, Python(8)});
  const v1::NodeStacks answer = Ask(Request(workers));
  ASSERT_EQ(answer.ranks_size(), 9) << answer.why();
  EXPECT_THAT(answer.ranks(0).no_python(), HasSubstr("does not answer in time"));
  EXPECT_EQ(answer.ranks(8).no_python(), "");
  ASSERT_EQ(answer.ranks(8).frames_size(), 2) << answer.ranks(8).DebugString();
  EXPECT_EQ(answer.ranks(8).frames(0).function(), "here");
}

TEST_F(StackCollectorTest, OfOneRankAllThreads) {
  StackRequest request = Request({{0, 4, Python(4)}, {1, 5, Sleeping()}});
  request.question.set_one_rank(true);
  request.question.set_rank(4);
  const v1::NodeStacks python = Ask(request);
  ASSERT_EQ(python.ranks_size(), 1);
  EXPECT_THAT(python.ranks(0).text(), HasSubstr("\nThread 0x"));
  EXPECT_THAT(python.ranks(0).text(), HasSubstr("\nCurrent thread 0x"));
  EXPECT_THAT(python.ranks(0).text(), Not(HasSubstr("native stacks")));
  request.question.set_rank(5);
  request.question.set_native(true);
  const v1::NodeStacks other = Ask(request);
  ASSERT_EQ(other.ranks_size(), 1);
  EXPECT_THAT(other.ranks(0).text(), HasSubstr("no Python stack: the process does not handle"));
  EXPECT_THAT(other.ranks(0).text(), HasSubstr("-- thread "));
  EXPECT_THAT(other.ranks(0).text(), HasSubstr("== native stacks of process"));
}

TEST_F(StackCollectorTest, OfManyWhoAskAtOnceSomeAreToldSo) {
  absl::Notification asked;
  std::atomic<size_t> refused{0};
  {
    StackCollector collector([&](const AgentEvent& event) {
      if (!std::get<StacksFound>(event).stacks.why().empty()) {
        ++refused;
      } else {
        asked.WaitForNotification();
      }
    });
    for (size_t i = 0; i < kMaxStackQuestions + 3; ++i) collector.Ask(Request({}));
    asked.Notify();
  }
  EXPECT_EQ(refused, 3u);
}

constexpr char kDump[] =
    "Thread 0x00007f01 (most recent call first):\n"
    "  File \"/usr/lib/python3.11/threading.py\", line 324 in wait\n"
    "  ...\n"
    "\n"
    "Current thread 0x00007f02 (most recent call first):\n"
    "  File \"/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py\", line 9 in "
    "all_reduce\n"
    "  File \"/home/me/train.py\", line 40 in main\n"
    "  File \"/home/me/train.py\", line 44 in <module>\n";

std::string Source(const std::string& file, int line) { return absl::StrCat(file, "#", line); }

TEST(RankStack, HasTheMainThreadsFramesAndTheSourceOfTheUsersOwn) {
  v1::RankStack stack;
  AddFrames(kDump, Source, &stack);
  ASSERT_EQ(stack.frames_size(), 3);
  EXPECT_EQ(stack.frames(0).function(), "all_reduce");
  EXPECT_EQ(stack.frames(0).line(), 9u);
  EXPECT_FALSE(stack.frames(0).own());
  EXPECT_EQ(stack.frames(0).source(), "");
  EXPECT_EQ(stack.frames(1).file(), "/home/me/train.py");
  EXPECT_TRUE(stack.frames(1).own());
  EXPECT_EQ(stack.frames(1).source(), "/home/me/train.py#40");
  EXPECT_FALSE(stack.cut());  // another thread's stack was cut
}

TEST(RankStack, SaysThatTheInterpreterLeftOutCalls) {
  v1::RankStack stack;
  AddFrames(absl::StrCat(kDump, "  ...\n"), Source, &stack);
  EXPECT_TRUE(stack.cut());
}

TEST(RankStack, IsBounded) {
  std::string dump = "Current thread 0x1 (most recent call first):\n";
  for (int i = 0; i < 120; ++i) {
    absl::StrAppend(&dump, "  File \"/home/me/", std::string(1000, 'x'), "\", line 1 in f\xff\n");
  }
  v1::RankStack stack;
  AddFrames(dump, Source, &stack);
  EXPECT_EQ(stack.frames_size(), static_cast<int>(kMaxStackFrames));
  EXPECT_TRUE(stack.cut());
  EXPECT_EQ(stack.frames(0).file().size(), kMaxFrameNameBytes);
  EXPECT_EQ(stack.frames(0).function(), "f\xef\xbf\xbd");
  EXPECT_NE(stack.frames(kMaxSourceLines - 1).source(), "");
  EXPECT_EQ(stack.frames(kMaxSourceLines).source(), "");
}

TEST(RankStack, AnAnswerIsBounded) {
  std::vector<v1::RankStack> ranks(5);
  for (v1::RankStack& rank : ranks) rank.set_text(std::string(kMaxNodeStackBytes / 3, 'x'));
  ranks[3].add_frames();
  const v1::NodeStacks answer = NodeStacksOf(ranks);
  ASSERT_EQ(answer.ranks_size(), 5);
  EXPECT_LT(answer.ByteSizeLong(), kMaxNodeStackBytes + (4 << 10));
  EXPECT_EQ(answer.ranks(1).no_python(), "");
  EXPECT_EQ(answer.ranks(3).frames_size(), 0);
  EXPECT_EQ(answer.ranks(3).text(), "");
  EXPECT_THAT(answer.ranks(3).no_python(), HasSubstr("left out"));
}

}  // namespace
}  // namespace cadre::agent
