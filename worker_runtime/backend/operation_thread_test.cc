#include "worker_runtime/backend/operation_thread.h"

#include <chrono>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"

namespace cadre::backend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

TEST(OperationThreadTest, RunsInOrder) {
  std::vector<int> order;
  OperationThread thread;
  std::shared_ptr<Work> last;
  for (int i = 0; i < 3; ++i) {
    last = thread.Enqueue([&order, i] {
      order.push_back(i);
      return OkStatus();
    });
  }
  EXPECT_OK(last->Wait(kLong));
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
}

TEST(OperationThreadTest, AfterAFailureEverythingFailsWithItsStatus) {
  OperationThread thread;
  absl::Notification go;
  auto first = thread.Enqueue([&go] {
    go.WaitForNotification();
    return UnavailableError("rank 1 is gone");
  });
  bool ran = false;
  auto second = thread.Enqueue([&ran] {
    ran = true;
    return OkStatus();
  });
  go.Notify();
  EXPECT_THAT(first->Wait(kLong), StatusIs(StatusCode::kUnavailable, "rank 1 is gone"));
  EXPECT_THAT(second->Wait(kLong), StatusIs(StatusCode::kUnavailable, "rank 1 is gone"));
  EXPECT_FALSE(ran);
  auto third = thread.Enqueue([] { return OkStatus(); });
  EXPECT_THAT(third->Wait(kLong), StatusIs(StatusCode::kUnavailable, "rank 1 is gone"));
  EXPECT_THAT(thread.status(), StatusIs(StatusCode::kUnavailable));
}

TEST(OperationThreadTest, TheFirstReasonStays) {
  OperationThread thread;
  absl::Notification go;
  auto running = thread.Enqueue([&go] {
    go.WaitForNotification();
    return UnavailableError("broken by the abort");
  });
  thread.Fail(AbortedError("aborted"));
  thread.Fail(InternalError("later"));
  go.Notify();
  EXPECT_THAT(running->Wait(kLong), StatusIs(StatusCode::kAborted, "aborted"));
}

TEST(OperationThreadTest, TheQueueIsBounded) {
  absl::Notification started, go;
  OperationThread thread;
  auto running = thread.Enqueue([&] {
    started.Notify();
    go.WaitForNotification();
    return OkStatus();
  });
  started.WaitForNotification();
  std::shared_ptr<Work> waiting;
  for (size_t i = 0; i < kMaxQueuedOperations; ++i) {
    waiting = thread.Enqueue([] { return OkStatus(); });
  }
  EXPECT_FALSE(waiting->done());
  auto over = thread.Enqueue([] { return OkStatus(); });
  EXPECT_THAT(over->Wait(kLong),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("4096 collectives")));
  EXPECT_THAT(waiting->Wait(kLong), StatusIs(StatusCode::kResourceExhausted));
  go.Notify();
}

TEST(OperationThreadTest, DestructionFailsWhatWaits) {
  std::shared_ptr<Work> waiting;
  absl::Notification started, go;
  {
    auto thread = std::make_unique<OperationThread>();
    thread->Enqueue([&] {
      started.Notify();
      go.WaitForNotification();
      return OkStatus();
    });
    waiting = thread->Enqueue([] { return OkStatus(); });
    started.WaitForNotification();
    std::thread release([&] {
      EXPECT_THAT(waiting->Wait(kLong), StatusIs(StatusCode::kCancelled));
      go.Notify();
    });
    thread.reset();
    release.join();
  }
  EXPECT_TRUE(waiting->done());
}

TEST(OperationThreadTest, MeasuresHowLongAnOperationRan) {
  OperationThread thread;
  absl::Notification never;
  auto work = thread.Enqueue([&never] {
    never.WaitForNotificationWithTimeout(absl::Milliseconds(5));
    return OkStatus();
  });
  EXPECT_OK(work->Wait(kLong));
  EXPECT_GE(work->duration(), std::chrono::milliseconds(5));
}

}  // namespace
}  // namespace cadre::backend
