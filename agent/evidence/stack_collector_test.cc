// With real processes: one of Python, one that would die by the signal, one that is stopped.
#include "agent/evidence/stack_collector.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "agent/evidence/python_dump.h"
#include "base/progress_snapshot.h"
#include "base/scoped_fd.h"
#include "base/status_matchers.h"

namespace cadre::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr uint64_t kGeneration = 3;

class StackCollectorTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(directory_.data()), nullptr); }
  void TearDown() override {
    for (const pid_t child : children_) {
      kill(-child, SIGKILL);  // what a shell has started, too
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    std::filesystem::remove_all(directory_);
  }

  // A child in a session of its own, as workers are.
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
  // One that handles the signal and says nothing.
  pid_t Silent(uint32_t rank) {
    std::ofstream(StackFilePath(directory_, kGeneration, static_cast<int>(rank))).flush();
    // From before it is there: without a handler it would not be asked.
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
    EXPECT_EQ(poll(&here, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))), 1);
    return child;
  }

  StackRequest Request(std::vector<LookedAtWorker> workers) {
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
    EXPECT_TRUE(answered.WaitForNotificationWithTimeout(kPatience));
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

// One after the other they would leave no time for the last.
TEST_F(StackCollectorTest, AnInterpreterThatAShellHasStartedIsTheProgram) {
  const pid_t shell = Python(4, /*behind_shell=*/true);
  const v1::NodeStacks answer = Ask(Request({{0, 4, shell}}));
  ASSERT_EQ(answer.ranks_size(), 1) << answer.why();
  EXPECT_EQ(answer.ranks(0).no_python(), "");
  ASSERT_EQ(answer.ranks(0).frames_size(), 2) << answer.ranks(0).DebugString();
  EXPECT_THAT(answer.ranks(0).frames(0).source(), HasSubstr("time.sleep(1000)  # there"));
  EXPECT_EQ(answer.ranks(0).evidence().python(), v1::IN_OWN_CODE);
}

TEST_F(StackCollectorTest, ThoseThatDoNotAnswerTakeNoTimeOfTheOthers) {
  std::vector<LookedAtWorker> workers;
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

}  // namespace
}  // namespace cadre::agent
