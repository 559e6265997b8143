#include "rendezvous/service/call_threads.h"

#include <grpcpp/alarm.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"

namespace cadre::service {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

class CallThreadsTest : public ::testing::Test {
 protected:
  CallThreadsTest() {
    grpc::ServerBuilder builder;
    threads_ = std::make_unique<CallThreads>(builder.AddCompletionQueue());
    server_ = builder.BuildAndStart();
    threads_->Start();
  }
  void EndThreads() {
    server_->Shutdown(std::chrono::system_clock::now());
    threads_ = nullptr;
  }
  ~CallThreadsTest() override { EndThreads(); }

  void OnAlarm(bool ok) {
    went_off_ = ok;
    ended_.Notify();
  }

  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<CallThreads> threads_;
  OperationOf<CallThreadsTest, &CallThreadsTest::OnAlarm> operation_{this};
  bool went_off_ = false;
  absl::Notification ended_;
};

TEST_F(CallThreadsTest, TellsOfAnOperationThatHasEnded) {
  grpc::Alarm alarm;
  alarm.Set(threads_->queue(), std::chrono::system_clock::now(),
            static_cast<Operation*>(&operation_));
  ASSERT_TRUE(ended_.WaitForNotificationWithTimeout(kPatience));
  EXPECT_TRUE(went_off_);
}

TEST_F(CallThreadsTest, TellsOfOneThatWasCancelled) {
  grpc::Alarm alarm;
  alarm.Set(threads_->queue(), std::chrono::system_clock::now() + std::chrono::hours(1),
            static_cast<Operation*>(&operation_));
  alarm.Cancel();
  ASSERT_TRUE(ended_.WaitForNotificationWithTimeout(kPatience));
  EXPECT_FALSE(went_off_);
}

TEST_F(CallThreadsTest, StayUntilAllCallsAreOver) {
  threads_->Enter();
  threads_->Enter();
  threads_->Leave();
  CallThreads& threads = *threads_;
  std::atomic<bool> left{false};
  std::thread ending([&] {
    EndThreads();
    EXPECT_TRUE(left);
  });
  left = true;
  threads.Leave();
  ending.join();
}

TEST(CallThreads, MayEndWithoutHavingStarted) {
  grpc::ServerBuilder builder;
  auto threads = std::make_unique<CallThreads>(builder.AddCompletionQueue());
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  server->Shutdown(std::chrono::system_clock::now());
  threads = nullptr;
}

}  // namespace
}  // namespace cadre::service
