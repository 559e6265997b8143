#include "worker_runtime/nccl/progress_thread.h"

#include <atomic>
#include <chrono>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_matchers.h"

namespace cadre::nccl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Stage = DeviceOperation::Stage;

constexpr std::chrono::nanoseconds kLong = std::chrono::minutes(1);

// A device whose operations are in the stage that the test sets.
struct Device {
  std::atomic<Stage> stage{Stage::kWaiting};
  std::atomic<int> started{0};
  std::atomic<bool> fails_to_start{false};
  std::atomic<bool> fails_while_running{false};
  std::atomic<bool> healthy{true};
  std::atomic<int> quiesced{0};
};

class TestOperation : public DeviceOperation {
 public:
  explicit TestOperation(Device* device) : device_(device) {}
  Status Start(MonoTime) override {
    ++device_->started;
    return device_->fails_to_start ? UnavailableError("no link") : OkStatus();
  }
  Result<Stage> Poll() override {
    if (device_->fails_while_running) return InternalError("an illegal memory access");
    return device_->stage.load();
  }
  std::chrono::nanoseconds duration() const override { return std::chrono::milliseconds(3); }

 private:
  Device* const device_;
};

ProgressOptions OptionsFor(Device* device, std::chrono::nanoseconds timeout = kLong) {
  ProgressOptions options;
  options.timeout = timeout;
  options.where = " on communicator \"world\"";
  options.check_health = [device] {
    return device->healthy ? OkStatus() : UnavailableError("rank 1 is gone");
  };
  options.quiesce = [device] { ++device->quiesced; };
  return options;
}

std::shared_ptr<Work> Enqueue(ProgressThread& thread, Device* device) {
  return thread.Enqueue("all-reduce", std::make_unique<TestOperation>(device));
}

// Waits for another thread to make the condition true.
template <typename Condition>
bool Becomes(Condition condition) {
  const MonoTime deadline = MonoNow() + kLong;
  while (!condition()) {
    if (MonoNow() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(ProgressThread, DoesNotStartWhatTheCallerHasStarted) {
  Device device;
  ProgressThread thread(OptionsFor(&device));
  const auto work = thread.Enqueue("all-reduce", std::make_unique<TestOperation>(&device),
                                   /*started=*/true);
  device.stage = Stage::kDone;
  EXPECT_OK(work->Wait(kLong));
  EXPECT_EQ(device.started, 0);
}

TEST(ProgressThreadTest, StartsAheadAndCompletesWithTheDevicesDuration) {
  Device device;
  ProgressThread thread(OptionsFor(&device));
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 5; ++i) works.push_back(Enqueue(thread, &device));
  EXPECT_TRUE(Becomes([&] { return device.started == 5; }));
  EXPECT_FALSE(works[0]->done());
  EXPECT_FALSE(thread.idle());
  device.stage = Stage::kDone;
  for (const auto& work : works) {
    EXPECT_OK(work->Wait(kLong));
    EXPECT_EQ(work->duration(), std::chrono::milliseconds(3));
  }
  EXPECT_TRUE(Becomes([&] { return thread.idle(); }));
  EXPECT_EQ(device.quiesced, 0);
}

TEST(ProgressThreadTest, NeverStartsMoreThanItMay) {
  Device device;
  ProgressThread thread(OptionsFor(&device));
  std::vector<std::shared_ptr<Work>> works;
  for (size_t i = 0; i < 2 * kMaxStartedOperations; ++i) works.push_back(Enqueue(thread, &device));
  EXPECT_TRUE(Becomes([&] { return device.started == static_cast<int>(kMaxStartedOperations); }));
  EXPECT_THAT(works.back()->Wait(std::chrono::milliseconds(20)),
              StatusIs(StatusCode::kDeadlineExceeded));
  EXPECT_EQ(device.started, static_cast<int>(kMaxStartedOperations));
  device.stage = Stage::kDone;
  EXPECT_OK(works.back()->Wait(kLong));
}

TEST(ProgressThreadTest, TimeCountsFromWhenItRuns) {
  Device device;
  ProgressThread thread(OptionsFor(&device, std::chrono::milliseconds(30)));
  const auto work = Enqueue(thread, &device);
  // The computation before the operation may take arbitrarily long.
  EXPECT_THAT(work->Wait(std::chrono::milliseconds(100)), StatusIs(StatusCode::kDeadlineExceeded));
  EXPECT_OK(thread.status());
  device.stage = Stage::kRunning;
  EXPECT_THAT(work->Wait(kLong),
              StatusIs(StatusCode::kDeadlineExceeded,
                       "all-reduce, call 1 on communicator \"world\": not done after 30ms; some "
                       "rank is stuck, or has made another call"));
  EXPECT_EQ(device.quiesced, 1);
}

TEST(ProgressThreadTest, OneFailureFailsAllAndLeavesTheBuffersFirst) {
  Device device;
  absl::Notification may_quiesce;
  ProgressOptions options = OptionsFor(&device);
  options.quiesce = [&] {
    may_quiesce.WaitForNotification();
    ++device.quiesced;
  };
  ProgressThread thread(options);
  const auto first = Enqueue(thread, &device), second = Enqueue(thread, &device);
  device.fails_while_running = true;
  EXPECT_TRUE(Becomes([&] { return !thread.status().ok(); }));
  EXPECT_FALSE(first->done()) << "the device may still write into the buffers";
  may_quiesce.Notify();
  const auto is_told = StatusIs(StatusCode::kInternal, HasSubstr("illegal memory access"));
  EXPECT_THAT(first->Wait(kLong), is_told);
  EXPECT_THAT(second->Wait(kLong), is_told);
  EXPECT_THAT(Enqueue(thread, &device)->Wait(kLong), is_told);
  thread.Fail(AbortedError("later"));
  EXPECT_THAT(thread.status(), is_told);
  EXPECT_EQ(device.quiesced, 1);
}

TEST(ProgressThreadTest, SaysWhatCouldNotStart) {
  Device device;
  device.fails_to_start = true;
  ProgressThread thread(OptionsFor(&device));
  EXPECT_THAT(
      Enqueue(thread, &device)->Wait(kLong),
      StatusIs(StatusCode::kUnavailable, "all-reduce, call 1 on communicator \"world\": no link"));
}

TEST(ProgressThreadTest, NoticesAnIllnessWhileIdleAndWhileRunning) {
  Device idle;
  ProgressThread idle_thread(OptionsFor(&idle));
  idle.healthy = false;
  EXPECT_TRUE(Becomes([&] { return !idle_thread.status().ok(); }));
  EXPECT_THAT(idle_thread.status(),
              StatusIs(StatusCode::kUnavailable, "rank 1 is gone on communicator \"world\""));
  Device busy;
  busy.stage = Stage::kRunning;
  ProgressThread busy_thread(OptionsFor(&busy));
  const auto work = Enqueue(busy_thread, &busy);
  EXPECT_TRUE(Becomes([&] { return busy.started == 1; }));
  busy.healthy = false;
  EXPECT_THAT(work->Wait(kLong),
              StatusIs(StatusCode::kUnavailable,
                       AllOf(HasSubstr("all-reduce, call 1"), HasSubstr("rank 1 is gone"))));
}

TEST(ProgressThreadTest, FailEndsWhatRunsWithinASecond) {
  Device device;
  device.stage = Stage::kRunning;
  ProgressThread thread(OptionsFor(&device));
  const auto work = Enqueue(thread, &device);
  EXPECT_TRUE(Becomes([&] { return device.started == 1; }));
  const MonoTime start = MonoNow();
  thread.Fail(AbortedError("aborted"));
  EXPECT_THAT(work->Wait(kLong), StatusIs(StatusCode::kAborted, "aborted"));
  EXPECT_LT(MonoNow() - start, absl::FromChrono(std::chrono::seconds(1)));
}

TEST(ProgressThreadTest, DestructionCancels) {
  Device device;
  std::shared_ptr<Work> work;
  {
    ProgressThread thread(OptionsFor(&device));
    work = Enqueue(thread, &device);
  }
  EXPECT_THAT(work->Wait(std::chrono::nanoseconds(0)), StatusIs(StatusCode::kCancelled));
  EXPECT_EQ(device.quiesced, 1);
}

TEST(ProgressThreadTest, TheQueueIsBounded) {
  Device device;
  ProgressThread thread(OptionsFor(&device));
  std::shared_ptr<Work> last;
  for (size_t i = 0; i < kMaxWaitingDeviceOperations + kMaxStartedOperations + 1; ++i) {
    last = Enqueue(thread, &device);
  }
  EXPECT_THAT(last->Wait(kLong), StatusIs(StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace cadre::nccl
