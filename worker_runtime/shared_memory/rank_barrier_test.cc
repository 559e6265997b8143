#include "worker_runtime/shared_memory/rank_barrier.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/clock.h"
#include "base/status_matchers.h"

namespace cadre::shared_memory {
namespace {

using ::testing::HasSubstr;

// Lines that a forked child shares.
std::vector<RankLine*> SharedLines(int ranks) {
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  std::vector<RankLine*> lines;
  for (int r = 0; r < ranks; ++r) lines.push_back(static_cast<RankLine*>(memory) + r);
  return lines;
}

MonoTime In(absl::Duration duration) { return MonoNow() + duration; }

TEST(MeetingTest, ManyMeetings_NobodyRunsAhead) {
  constexpr int kRanks = 3, kRounds = 2000;
  const auto lines = SharedLines(kRanks);
  std::atomic<int> entered{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      Peers meeting_peers(rank, lines, std::vector<pid_t>(kRanks, getpid()));
      Meeting meeting(&meeting_peers);
      for (int round = 1; round <= kRounds; ++round) {
        ++entered;
        meeting.Arrive();
        EXPECT_OK(meeting.WaitForAll(In(absl::Seconds(20))));
        EXPECT_GE(entered.load(), round * kRanks);
        EXPECT_LT(entered.load(), (round + 1) * kRanks);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(MeetingTest, RankThatNeverComes_IsNamedAtTheDeadline) {
  const auto lines = SharedLines(2);
  lines[1]->word.kind = Collective::kBarrier;
  lines[1]->progress.store(uint64_t{7} << 32);
  Peers meeting_peers(0, lines, {getpid(), getpid()});
  Meeting meeting(&meeting_peers);
  meeting.Arrive();
  EXPECT_THAT(meeting.WaitForAll(In(absl::Milliseconds(30))),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 1 (its last was collective 7, a barrier)")));
}

TEST(MeetingTest, RankThatIsKilled_IsNamedSoon) {
  const auto lines = SharedLines(2);
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  Peers meeting_peers(0, lines, {getpid(), child});
  Meeting meeting(&meeting_peers);
  meeting.Arrive();
  const MonoTime killed = MonoNow();
  kill(child, SIGKILL);
  EXPECT_THAT(meeting.WaitForAll(In(absl::Seconds(20))),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 is gone")));
  EXPECT_LT(MonoNow() - killed, absl::Seconds(5));
  waitpid(child, nullptr, 0);
}

TEST(MeetingTest, RankThatCameAndThenDied_IsNotMissed) {
  const auto lines = SharedLines(2);
  const pid_t child = fork();
  if (child == 0) {
    Peers meeting_peers(1, lines, {getppid(), getpid()});
    Meeting meeting(&meeting_peers);
    meeting.Arrive();
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  Peers meeting_peers(0, lines, {getpid(), child});
  Meeting meeting(&meeting_peers);
  meeting.Arrive();
  EXPECT_OK(meeting.WaitForAll(In(absl::Seconds(1))));
}

TEST(MeetingTest, Abort_EndsTheOthersWaitAndItsOwn) {
  const auto lines = SharedLines(3);
  const std::vector<pid_t> pids(3, getpid());
  Peers aborting_peers(1, lines, pids);
  Meeting aborting(&aborting_peers);
  Peers waiting_peers(0, lines, pids);
  Meeting waiting(&waiting_peers);
  std::thread other([&] {
    waiting.Arrive();
    EXPECT_THAT(waiting.WaitForAll(In(absl::Seconds(20))),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1")));
  });
  aborting_peers.GiveUp(Reason::kCaller, 1);
  other.join();
  aborting.Arrive();
  EXPECT_THAT(aborting.WaitForAll(In(absl::Seconds(20))), StatusIs(absl::StatusCode::kAborted));
}

}  // namespace
}  // namespace cadre::shared_memory
