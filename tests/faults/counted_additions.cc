#include "tests/faults/counted_additions.h"

#include "absl/time/clock.h"
#include "base/status_matchers.h"

namespace cadre {

CountedAdditions::CountedAdditions(const MortalServer& server)
    : client_(server, "job", 4711), adder_([this] { Add(); }) {}

CountedAdditions::~CountedAdditions() { Stop(); }

void CountedAdditions::Add() {
  for (int64_t i = 1; !stop_; ++i) {
    const absl::StatusOr<int64_t> sum = client_.Add("count", i);
    ASSERT_THAT(sum, IsOk());
    // Lost, it would be less; done twice, more.
    ASSERT_EQ(*sum, i);
    const absl::MutexLock lock(&mutex_);
    acknowledged_ = i;
  }
}

void CountedAdditions::AwaitAnyMoment() {
  {
    const absl::MutexLock lock(&mutex_);
    const int64_t enough = acknowledged_ + 1 + static_cast<int64_t>(random_() % 8);
    const auto come = [&] { return acknowledged_ >= enough; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&come), absl::Seconds(20)));
  }
  // Anywhere in what the server does next.
  const absl::Time moment = absl::Now() + absl::Microseconds(random_() % 10000);
  while (absl::Now() < moment) {
  }
}

int64_t CountedAdditions::Stop() {
  stop_ = true;
  if (adder_.joinable()) adder_.join();
  return acknowledged_;
}

}  // namespace cadre
