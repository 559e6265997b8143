#include "worker_runtime/gloo/watched_transport.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "gloo/common/error.h"

namespace cadre::gloo {
namespace {

using ::gloo::transport::Context;
using ::gloo::transport::Pair;
using ::gloo::transport::UnboundBuffer;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kLong(60000);

// A transport on which nothing ever arrives, and which, like Gloo's, does not tell a reader that
// his message was cut off.
class SilentBuffer : public UnboundBuffer {
 public:
  SilentBuffer(void* data, size_t bytes, const std::atomic<bool>* cut, absl::Notification* waiting)
      : UnboundBuffer(data, bytes), cut_(cut), waiting_(waiting) {}

  bool waitRecv(int*, std::chrono::milliseconds timeout) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (timeout > std::chrono::seconds(1) && !waiting_->HasBeenNotified()) waiting_->Notify();
    if (changed_.wait_for(lock, timeout, [this] { return aborted_; })) return false;
    throw ::gloo::IoException("Timed out");
  }
  bool waitSend(int* rank, std::chrono::milliseconds timeout) override {
    return waitRecv(rank, timeout);
  }
  void abortWaitRecv() override {
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }
  void abortWaitSend() override { abortWaitRecv(); }
  void send(int, uint64_t, size_t, size_t) override { ThrowIfCut(); }
  void recv(int, uint64_t, size_t, size_t) override { ThrowIfCut(); }
  void recv(std::vector<int>, uint64_t, size_t, size_t) override { ThrowIfCut(); }

 private:
  void ThrowIfCut() const {
    if (*cut_) throw ::gloo::IoException("Connection closed by peer");
  }

  const std::atomic<bool>* const cut_;
  absl::Notification* const waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool aborted_ = false;
};

class SilentContext : public Context {
 public:
  SilentContext() : Context(0, 2) {}
  std::unique_ptr<Pair>& createPair(int rank) override { return getPair(rank); }
  std::unique_ptr<UnboundBuffer> createUnboundBuffer(void* data, size_t bytes) override {
    return std::make_unique<SilentBuffer>(data, bytes, &cut, &waiting);
  }
  std::atomic<bool> cut{false};
  absl::Notification waiting;  // a reader waits
};

class WatchedTransportTest : public ::testing::Test {
 protected:
  // What a reader of rank 1's data is told.
  std::thread Read() {
    return std::thread([this] {
      char byte;
      const auto buffer = watched_.createUnboundBuffer(&byte, 1);
      try {
        buffer->recv(1, 0, 0, 1);
        buffer->waitRecv(nullptr, kLong);
      } catch (const ::gloo::IoException& error) {
        told_ = error.what();
      }
    });
  }

  std::shared_ptr<SilentContext> inner_ = std::make_shared<SilentContext>();
  WatchedContext watched_{inner_};
  std::string told_;
};

TEST_F(WatchedTransportTest, BreakEndsAWait) {
  std::thread reader = Read();
  inner_->waiting.WaitForNotification();
  watched_.Break(absl::AbortedError("enough"));
  watched_.Break(absl::InternalError("later"));
  reader.join();
  EXPECT_THAT(told_, HasSubstr("enough"));
  EXPECT_THAT(watched_.broken(), StatusIs(absl::StatusCode::kAborted, "enough"));
}

TEST_F(WatchedTransportTest, AfterABreakNobodyWaits) {
  watched_.Break(absl::AbortedError("enough"));
  Read().join();
  EXPECT_THAT(told_, HasSubstr("enough"));
}

TEST_F(WatchedTransportTest, ACutMessageIsNoticedAtTheSecondLook) {
  std::thread reader = Read();
  inner_->waiting.WaitForNotification();
  watched_.CheckAwaitedRanks();
  EXPECT_OK(watched_.broken());
  inner_->cut = true;
  watched_.CheckAwaitedRanks();
  EXPECT_OK(watched_.broken());
  watched_.CheckAwaitedRanks();
  reader.join();
  EXPECT_THAT(watched_.broken(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 closed in the middle")));
}

TEST_F(WatchedTransportTest, NobodyIsMissedWhileNobodyWaits) {
  inner_->cut = true;
  watched_.CheckAwaitedRanks();
  watched_.CheckAwaitedRanks();
  EXPECT_OK(watched_.broken());
}

TEST_F(WatchedTransportTest, ALostConnectionNamesTheRank) {
  inner_->cut = true;
  Read().join();
  EXPECT_THAT(watched_.broken(),
              StatusIs(absl::StatusCode::kUnavailable, "the connection to rank 1 closed"));
}

TEST_F(WatchedTransportTest, TheDeadlineNamesTheRank) {
  watched_.SetDeadline(MonoNow() + absl::Milliseconds(5));
  Read().join();
  EXPECT_THAT(watched_.broken(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("from rank 1")));
}

}  // namespace
}  // namespace cadre::gloo
