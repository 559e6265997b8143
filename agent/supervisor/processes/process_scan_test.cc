#include "agent/supervisor/processes/process_scan.h"

#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::supervisor {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

// A child that has stopped itself.
class Child {
 public:
  Child() {
    char* const argv[] = {const_cast<char*>("sh"), const_cast<char*>("-c"),
                          const_cast<char*>("kill -STOP $$"), nullptr};
    char* const environment[] = {const_cast<char*>("CADRE_SUPERVISED_BY=id.7"), nullptr};
    EXPECT_EQ(posix_spawnp(&pid_, "sh", nullptr, nullptr, argv, environment), 0);
    siginfo_t info = {};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOWAIT), 0);
  }
  ~Child() {
    if (reaped_) return;
    kill(pid_, SIGKILL);
    Reap();
  }
  pid_t pid() const { return pid_; }
  void AwaitEnd() const {
    siginfo_t info = {};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT), 0);
  }
  void Reap() { reaped_ = waitpid(pid_, nullptr, 0) == pid_; }

 private:
  pid_t pid_ = 0;
  bool reaped_ = false;
};

TEST(ProcessScan, InspectsAProcessFromItsLifeToItsReaping) {
  Child child;
  const auto alive = InspectProcess(child.pid());
  ASSERT_TRUE(alive.has_value());
  EXPECT_EQ(alive->parent, getpid());
  EXPECT_EQ(alive->session, getsid(0));
  EXPECT_FALSE(alive->exiting);
  EXPECT_THAT(OwnChildren(), Contains(child.pid()));

  kill(child.pid(), SIGKILL);
  child.AwaitEnd();
  const auto dead = InspectProcess(child.pid());
  ASSERT_TRUE(dead.has_value());
  EXPECT_EQ(dead->state, 'Z');
  EXPECT_TRUE(dead->exiting);
  EXPECT_THAT(OwnChildren(), Contains(child.pid())) << "it is not reaped";

  child.Reap();
  EXPECT_FALSE(InspectProcess(child.pid()).has_value());
  EXPECT_THAT(OwnChildren(), Not(Contains(child.pid())));
}

TEST(ProcessScan, KillsWhatBelongs_AndCountsNoZombie) {
  const Child victim;
  const Child other;
  const auto kill_victim = [&] {
    return KillProcesses([&](const ProcessInfo& process) { return process.pid == victim.pid(); });
  };
  EXPECT_THAT(kill_victim(), ElementsAre(victim.pid()));
  victim.AwaitEnd();
  EXPECT_THAT(kill_victim(), ElementsAre());
  EXPECT_FALSE(InspectProcess(other.pid())->exiting);
}

// A process that waits for a processor, or is dead, is not blocked in the kernel.
//
// Fault (worker): A killed process gets no processor time for long -> It is told apart from one
// that is stuck, and not reported before a minute has passed
TEST(ProcessScan, TellsWhatEndsByItselfFromWhatWaits) {
  Child child;
  const auto stopped = InspectKilled(child.pid());
  ASSERT_TRUE(stopped.has_value());
  EXPECT_FALSE(stopped->will_end);
  EXPECT_EQ(stopped->state, 'T');
  kill(child.pid(), SIGKILL);
  child.AwaitEnd();
  const auto dead = InspectKilled(child.pid());
  ASSERT_TRUE(dead.has_value());
  EXPECT_TRUE(dead->will_end);
  EXPECT_EQ(dead->state, 'Z');
  child.Reap();
  EXPECT_FALSE(InspectKilled(child.pid()).has_value());
}

// This process: the calling thread runs, and another one waits.
TEST(ProcessScan, AThreadThatWaitsKeepsItsProcess) {
  EXPECT_TRUE(InspectKilled(getpid())->will_end);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::thread waits([&] {
    char byte;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
  });
  while (InspectKilled(getpid())->will_end) sched_yield();
  const auto found = InspectKilled(getpid());
  EXPECT_EQ(found->state, 'S');
  EXPECT_THAT(found->kernel_function, testing::HasSubstr("pipe"));
  EXPECT_EQ(write(ends[1], "x", 1), 1);
  waits.join();
}

TEST(ProcessScan, TheMarkerIsThatOfTheStart) {
  const Child child;
  EXPECT_EQ(ReadMarker(child.pid()), "id.7");
  EXPECT_EQ(ReadMarker(getpid()), "");
}

}  // namespace
}  // namespace cadre::supervisor
