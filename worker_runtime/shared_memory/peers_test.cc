#include "worker_runtime/shared_memory/peers.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mutex>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "worker_runtime/shared_memory/futex.h"

namespace cadre::shared_memory {
namespace {

using ::testing::HasSubstr;

// Returns control blocks that a forked child shares.
std::vector<ControlBlock*> SharedBlocks(int ranks) {
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  std::vector<ControlBlock*> blocks;
  for (int r = 0; r < ranks; ++r) blocks.push_back(static_cast<ControlBlock*>(memory) + r);
  return blocks;
}

MonoTime In(absl::Duration duration) { return MonoNow() + duration; }

TEST(RankBarrierTest, ManyMeetings_NobodyRunsAhead) {
  constexpr int kRanks = 3, kRounds = 2000;
  const auto blocks = SharedBlocks(kRanks);
  std::atomic<int> entered{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      Peers peers(rank, blocks, std::vector<pid_t>(kRanks, getpid()));
      RankBarrier barrier(&peers);
      for (int round = 1; round <= kRounds; ++round) {
        ++entered;
        barrier.Arrive();
        EXPECT_OK(barrier.WaitForAll(In(absl::Seconds(20))));
        EXPECT_GE(entered.load(), round * kRanks);
        EXPECT_LT(entered.load(), (round + 1) * kRanks);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(RankBarrierTest, RankThatNeverComes_IsNamedAtTheDeadline) {
  const auto blocks = SharedBlocks(2);
  blocks[1]->call.kind = Collective::kBarrier;
  blocks[1]->progress.store(uint64_t{7} << 32);
  Peers peers(0, blocks, {getpid(), getpid()});
  RankBarrier barrier(&peers);
  barrier.Arrive();
  EXPECT_THAT(barrier.WaitForAll(In(absl::Milliseconds(30))),
              StatusIs(StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 1 (its last was collective 7, a barrier)")));
}

TEST(RankBarrierTest, RankThatIsKilled_IsNamedSoon) {
  const auto blocks = SharedBlocks(2);
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  Peers peers(0, blocks, {getpid(), child});
  RankBarrier barrier(&peers);
  barrier.Arrive();
  const MonoTime killed = MonoNow();
  kill(child, SIGKILL);
  EXPECT_THAT(barrier.WaitForAll(In(absl::Seconds(20))),
              StatusIs(StatusCode::kUnavailable, HasSubstr("rank 1 is gone")));
  EXPECT_LT(MonoNow() - killed, absl::Seconds(5));
  waitpid(child, nullptr, 0);
}

TEST(RankBarrierTest, RankThatCameAndThenDied_IsNotMissed) {
  const auto blocks = SharedBlocks(2);
  const pid_t child = fork();
  if (child == 0) {
    Peers peers(1, blocks, {getppid(), getpid()});
    RankBarrier barrier(&peers);
    barrier.Arrive();
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  Peers peers(0, blocks, {getpid(), child});
  RankBarrier barrier(&peers);
  barrier.Arrive();
  EXPECT_OK(barrier.WaitForAll(In(absl::Seconds(1))));
}

TEST(RankBarrierTest, Abort_EndsTheOthersWaitAndItsOwn) {
  const auto blocks = SharedBlocks(3);
  const std::vector<pid_t> pids(3, getpid());
  Peers aborting_peers(1, blocks, pids);
  RankBarrier aborting(&aborting_peers);
  Peers waiting_peers(0, blocks, pids);
  RankBarrier waiting(&waiting_peers);
  std::thread other([&] {
    waiting.Arrive();
    EXPECT_THAT(waiting.WaitForAll(In(absl::Seconds(20))),
                StatusIs(StatusCode::kAborted, HasSubstr("rank 1")));
  });
  aborting_peers.GiveUp(Reason::kCaller, 1);
  other.join();
  aborting.Arrive();
  EXPECT_THAT(aborting.WaitForAll(In(absl::Seconds(20))), StatusIs(StatusCode::kAborted));
}

// Another process, which lives until the test ends.
class PeersTest : public ::testing::Test {
 protected:
  PeersTest() : child_(fork()) {
    while (child_ == 0) pause();
  }
  ~PeersTest() override { End(); }
  void End() {
    if (child_ > 0) kill(child_, SIGKILL);
    if (child_ > 0) waitpid(child_, nullptr, 0);
    child_ = -1;
  }

  pid_t child_;
  const std::vector<ControlBlock*> blocks_ = SharedBlocks(2);
};

// Makes pidfd_open() fail with `error` in this thread. Returns false if that is impossible here.
bool RefusePidfds(int error) {
  sock_filter lines[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof(lines) / sizeof(lines[0]), lines};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_F(PeersTest, WhoLivesIsThereAndWhoEndedIsGone) {
  const Peers peers(0, blocks_, {getpid(), child_});
  EXPECT_OK(peers.status());
  EXPECT_OK(peers.Check(1));
  const pid_t ended = child_;
  End();
  EXPECT_THAT(peers.Check(1), StatusIs(StatusCode::kUnavailable, HasSubstr("rank 1 is gone")));
  EXPECT_THAT(Peers(0, blocks_, {getpid(), ended}).Check(1),
              StatusIs(StatusCode::kUnavailable, HasSubstr("rank 1 is gone")));
}

// Fault (input): A rank has no descriptors to watch the other ranks of its node with -> It says so
// and does not connect; no live rank is taken for dead
TEST_F(PeersTest, WithoutDescriptorsNobodyIsTakenForGone) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Peers peers(0, blocks_, {getpid(), child_});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_THAT(peers.status(), StatusIs(StatusCode::kResourceExhausted, HasSubstr("ulimit -n")));
  EXPECT_OK(peers.Check(1));
}

// Fault (input): A container refuses `pidfd_open` -> Ranks watch each other by PID instead
TEST_F(PeersTest, WherePidfdsAreRefusedTheProcessIsAskedFor) {
  for (const int error : {EPERM, ENOSYS}) {
    bool refused = false;
    std::thread filtered([&] {
      refused = RefusePidfds(error);
      const Peers peers(0, blocks_, {getpid(), child_});
      EXPECT_OK(peers.status());
      EXPECT_OK(peers.Check(1));
      if (error != ENOSYS) return;
      End();
      EXPECT_THAT(peers.Check(1), StatusIs(StatusCode::kUnavailable, HasSubstr("rank 1 is gone")));
    });
    filtered.join();
    if (!refused) GTEST_SKIP() << "no filter of system calls can be set here";
  }
}

TEST(CallLockTest, ManyThreads_OneAtATime) {
  constexpr int kThreads = 4, kRounds = 20000;
  CallLock lock;
  int64_t sum = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        std::lock_guard<CallLock> held(lock);
        const int64_t before = sum;
        // Other threads get the core while the lock is held, so that they sleep on it.
        if (round % 1000 == 0) std::this_thread::yield();
        sum = before + 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, int64_t{kThreads} * kRounds);
}

}  // namespace

}  // namespace cadre::shared_memory
