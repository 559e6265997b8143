#include "worker_runtime/nccl/abort_together.h"

#include <functional>
#include <utility>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_matchers.h"

namespace cadre::nccl {
namespace {

using ::testing::HasSubstr;

// Ends only when `end` returns.
class SlowCommunicator : public Communicator {
 public:
  explicit SlowCommunicator(std::function<void()> end) : end_(std::move(end)) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::shared_ptr<Work> AllReduce(Buffer, Reduction) override { return nullptr; }
  std::shared_ptr<Work> Broadcast(Buffer, int) override { return nullptr; }
  std::shared_ptr<Work> AllGather(Buffer, Buffer) override { return nullptr; }
  std::shared_ptr<Work> Barrier() override { return nullptr; }
  void Abort() override { end_(); }

 private:
  const std::function<void()> end_;
};

TEST(AbortTogetherTest, EndsThoseThatWaitForEachOther) {
  constexpr int kCount = 4;
  // Each aborts only once all of them abort.
  auto* const all_abort = new absl::Barrier(kCount);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int i = 0; i < kCount; ++i) {
    communicators.push_back(std::make_unique<SlowCommunicator>([all_abort] {
      if (all_abort->Block()) delete all_abort;
    }));
  }
  EXPECT_OK(AbortTogether(std::move(communicators), absl::Minutes(1)));
}

TEST(AbortTogetherTest, WaitsNoLongerThanItMay) {
  auto may_end = std::make_shared<absl::Notification>();
  std::vector<std::unique_ptr<Communicator>> communicators;
  communicators.push_back(std::make_unique<SlowCommunicator>([] {}));
  communicators.push_back(
      std::make_unique<SlowCommunicator>([may_end] { may_end->WaitForNotification(); }));
  const MonoTime start = MonoNow();
  EXPECT_THAT(AbortTogether(std::move(communicators), absl::Milliseconds(200)),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("1 of 2")));
  EXPECT_LT(MonoNow() - start, absl::Seconds(5));
  may_end->Notify();
}

TEST(AbortTogetherTest, RefusesMoreThanItCan) {
  EXPECT_OK(AbortTogether({}, absl::ZeroDuration()));
  EXPECT_THAT(AbortTogether(std::vector<std::unique_ptr<Communicator>>(kMaxAbortedTogether + 1),
                            absl::Seconds(1)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("65")));
}

}  // namespace
}  // namespace cadre::nccl
