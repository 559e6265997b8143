#include "worker_runtime/testing/lost_rank_moments.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "worker_runtime/testing/forked_workers.h"

namespace cadre::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Test;

// A world's store has room for the keys of so many moments.
constexpr int kMomentsOfAWorld = 10;
constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);
constexpr std::chrono::nanoseconds kShort = std::chrono::seconds(1);
// kInTime is the promised time; kNoticed allows for a machine that is busy with other work.
constexpr absl::Duration kInTime = absl::Seconds(1);
constexpr absl::Duration kNoticed = absl::Seconds(10);

std::string Key(const char* what, const Moment& moment, int rank = 0) {
  return absl::StrCat(what, "/", moment.number, "/", rank);
}

std::vector<Moment> RandomMoments(int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Moment> moments;
  for (int i = 0; i < count; ++i) {
    Moment moment;
    moment.number = i;
    moment.fault = random() % 10 == 0 ? RankFault::kStopped : RankFault::kKilled;
    moment.culprit = static_cast<int>(random() % kRanksOfAMoment);
    moment.steps = random() % 8;
    moment.later = absl::Microseconds(random() % 5000);
    moment.coin = random() % 2 == 0;
    moments.push_back(moment);
  }
  return moments;
}

// How many steps each rank has made. The counters are in shared memory of their own, because a rank
// must not be stopped while it holds the store's lock.
class Steps {
 public:
  Steps()
      : steps_(static_cast<std::atomic<int64_t>*>(
            mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Steps() { munmap(steps_, kBytes); }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;
  std::atomic<int64_t>& operator[](int rank) const { return steps_[rank]; }

 private:
  static constexpr size_t kBytes = kRanksOfAMoment * sizeof(std::atomic<int64_t>);
  std::atomic<int64_t>* const steps_;
};

class World {
 public:
  World(std::vector<Moment> moments, const LifeOfARank& life)
      : moments_(std::move(moments)), life_(life), workers_(kRanksOfAMoment) {
    workers_.Start([this](Worker& worker) { return RunRank(worker, 0); });
  }

  // Returns how long the surviving ranks took, in any order.
  std::vector<absl::Duration> Run() {
    std::vector<absl::Duration> took;
    for (size_t m = 0; m < moments_.size(); ++m) {
      SCOPED_TRACE(moments_[m].ToString());
      Strike(moments_[m], &took);
      if (Test::HasFailure()) return took;
      workers_.Replace(moments_[m].culprit,
                       [this, m](Worker& worker) { return RunRank(worker, m + 1); });
    }
    EXPECT_EQ(workers_.WaitForAll(), 0);
    return took;
  }

 private:
  // The program of a rank whose process is started for moment `first`.
  int RunRank(Worker& worker, size_t first) {
    for (size_t m = first; m < moments_.size() && !Test::HasFailure(); ++m) {
      if (!worker.Get(Key("begin", moments_[m]), kLong).ok()) return 1;
      const RankEnd end = life_(worker, moments_[m], steps_[worker.rank()]);
      const std::string text = absl::StrCat(static_cast<int>(end.cause.code()), "|",
                                            end.at.micros(), "|", std::string(end.cause.message()));
      worker.Set(Key("ended", moments_[m], worker.rank()), text).IgnoreError();
    }
    return Test::HasFailure() ? 1 : 0;
  }

  void Strike(const Moment& moment, std::vector<absl::Duration>* took) {
    for (int rank = 0; rank < kRanksOfAMoment; ++rank) steps_[rank] = 0;
    ASSERT_OK(workers_.observer().Set(Key("begin", moment), ""));
    const MonoTime deadline = MonoNow() + absl::FromChrono(kLong);
    while (steps_[moment.culprit] <= moment.steps) {
      ASSERT_LT(MonoNow(), deadline) << "the ranks do not come to their fault";
      sched_yield();
    }
    const MonoTime when = MonoNow() + moment.later;
    while (MonoNow() < when) {
    }
    const bool killed = moment.fault == RankFault::kKilled;
    const MonoTime struck = MonoNow();
    workers_.Signal(moment.culprit, killed ? SIGKILL : SIGSTOP);
    const absl::Duration owed = killed ? absl::ZeroDuration() : absl::FromChrono(kShort);
    for (int rank = 0; rank < kRanksOfAMoment; ++rank) {
      if (rank == moment.culprit) continue;
      const RankEnd end = EndOf(moment, rank);
      EXPECT_THAT(
          end.cause,
          StatusIs(killed ? StatusCode::kUnavailable : StatusCode::kDeadlineExceeded,
                   HasSubstr(absl::StrCat("rank ", moment.culprit, killed ? " is gone" : " ("))))
          << "as rank " << rank << " has it";
      took->push_back(end.at - struck - owed);
      EXPECT_LT(took->back(), kNoticed);
    }
    workers_.Signal(moment.culprit, SIGKILL);
    EXPECT_EQ(workers_.Wait(moment.culprit), 128 + SIGKILL);
  }

  RankEnd EndOf(const Moment& moment, int rank) {
    const auto text = workers_.observer().Get(Key("ended", moment, rank), kLong);
    if (!text.ok()) return {text.status(), MonoNow()};
    const std::vector<std::string> parts = absl::StrSplit(*text, absl::MaxSplits('|', 2));
    int code = 0;
    int64_t micros = 0;
    EXPECT_TRUE(absl::SimpleAtoi(parts[0], &code) && absl::SimpleAtoi(parts[1], &micros));
    return {Status(static_cast<StatusCode>(code), parts[2]), MonoTime::FromMicros(micros)};
  }

  const std::vector<Moment> moments_;
  const LifeOfARank& life_;
  const Steps steps_;
  ForkedWorkers workers_;
};

}  // namespace

std::chrono::nanoseconds Moment::timeout() const {
  return fault == RankFault::kStopped ? kShort : kLong;
}

std::string Moment::name() const { return absl::StrCat("moment", number); }

std::string Moment::ToString() const {
  return absl::StrCat("moment ", number, " (", coin ? "heads" : "tails", "): rank ", culprit,
                      fault == RankFault::kKilled ? " is killed " : " is stopped ",
                      absl::FormatDuration(later), " after step ", steps);
}

void RunMoments(int count, uint32_t seed, const LifeOfARank& life) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  const std::vector<Moment> moments = RandomMoments(count, seed);
  std::vector<absl::Duration> took;
  for (auto first = moments.begin(); first != moments.end();) {
    const auto end = first + std::min<std::ptrdiff_t>(kMomentsOfAWorld, moments.end() - first);
    World world(std::vector<Moment>(first, end), life);
    const auto more = world.Run();
    took.insert(took.end(), more.begin(), more.end());
    if (Test::HasFailure()) return;
    first = end;
  }
  std::sort(took.begin(), took.end());
  std::printf("seed %u, %d moments: the others had the cause after %s, %s at most\n", seed, count,
              absl::FormatDuration(took[took.size() / 2]).c_str(),
              absl::FormatDuration(took.back()).c_str());
  const auto late = took.end() - std::upper_bound(took.begin(), took.end(), kInTime);
  EXPECT_LE(static_cast<size_t>(late) * 20, took.size())
      << "more than one in twenty came later than after a second";
}

}  // namespace cadre::testing
