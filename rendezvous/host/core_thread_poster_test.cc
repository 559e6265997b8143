// Events that are handled by who posts them.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/host/join_for_test.h"

namespace cadre::host {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

// Notes on which thread the core speaks to a node.
class Listener final : public NodeSink {
 public:
  void Send(v1::ServerMessage message) override {
    const absl::MutexLock lock(&mutex_);
    if (message.has_assign()) assigned_ = true;
    if (message.has_renewed()) {
      renewed_on_ = std::this_thread::get_id();
      ++renewals_;
    }
    if (message.has_store()) ++answers_[message.store().code()];
  }
  void Close(const absl::Status&) override {}

  bool AwaitAssign() {
    const absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&assigned_), kPatience);
  }
  std::thread::id renewed_on() {
    const absl::MutexLock lock(&mutex_);
    return renewed_on_;
  }
  // Whether so many renewals have been answered, or are in time.
  bool AwaitRenewals(int count) {
    const absl::MutexLock lock(&mutex_);
    const auto come = [&] { return renewals_ >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&come), kPatience);
  }
  // Whether so many answers with this code have come, or come in time.
  bool AwaitAnswers(absl::StatusCode code, int count) {
    const absl::MutexLock lock(&mutex_);
    const auto come = [&] { return answers_[static_cast<int>(code)] >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&come), kPatience);
  }
  int answers() {
    const absl::MutexLock lock(&mutex_);
    int all = 0;
    for (const auto& [code, count] : answers_) all += count;
    return all;
  }

 private:
  absl::Mutex mutex_;
  bool assigned_ = false;
  std::thread::id renewed_on_;
  int renewals_ = 0;
  std::map<int, int> answers_;  // how many of each code
};

v1::NodeMessage RenewForTest() {
  v1::NodeMessage renew = OfGenerationForTest("node0");
  renew.mutable_renew()->set_number(1);
  return renew;
}

v1::NodeMessage AskForTest(v1::StoreRequest request) {
  v1::NodeMessage message = OfGenerationForTest("node0");
  *message.mutable_store() = std::move(request);
  return message;
}

class CoreThreadPosterTest : public ::testing::Test {
 protected:
  // A job of one node that runs.
  void Start(log::OpenedLog log = {}) {
    core_ = std::make_unique<CoreThread>(NewCoreConfig(), nullptr, std::move(log));
    stream_ = core_->OpenStream(listener_);
    ASSERT_OK(core_->Post(stream_, JoinForTest("node0", 1, 1)));
    ASSERT_TRUE(listener_->AwaitAssign());
  }

  const std::shared_ptr<Listener> listener_ = std::make_shared<Listener>();
  std::unique_ptr<CoreThread> core_;
  StreamId stream_;
};

TEST_F(CoreThreadPosterTest, WhoPostsHandlesItWhenTheThreadHasNothingToDo) {
  Start();
  // The thread goes to rest at some time. Each answer is awaited: a busy machine's thread may leave
  // more in the queue than there is room for.
  const MonoTime until = MonoNow() + kPatience;
  for (int i = 1; listener_->renewed_on() != std::this_thread::get_id() && MonoNow() < until; ++i) {
    ASSERT_OK(core_->Post(stream_, RenewForTest()));
    ASSERT_TRUE(listener_->AwaitRenewals(i));
  }
  EXPECT_EQ(listener_->renewed_on(), std::this_thread::get_id());
}

TEST_F(CoreThreadPosterTest, TheThreadLearnsOfDeadlinesThatOthersMake) {
  Start();
  // The thread looks around every 1.7 s by itself, for the node's lease: too late for all of them.
  for (int i = 1; i <= 40; ++i) {
    v1::StoreRequest get = GetForTest("absent", static_cast<uint64_t>(i));
    get.set_wait_ms(1);
    ASSERT_OK(core_->Post(stream_, AskForTest(get)));
    ASSERT_TRUE(listener_->AwaitAnswers(absl::StatusCode::kDeadlineExceeded, i));
  }
}

TEST_F(CoreThreadPosterTest, ManyWhoPostAtOnceAreHandledOneAfterTheOther) {
  constexpr int kThreads = 4, kEach = 500;
  Start();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        v1::StoreRequest add = GetForTest("", static_cast<uint64_t>(t * kEach + i + 1));
        add.mutable_add()->set_key("sum");
        add.mutable_add()->set_delta(1);
        if (i % 2 == 0) {
          EXPECT_OK(core_->Post(stream_, AskForTest(add)));
        } else {
          core_->CallStore(add, [](const v1::StoreReply& reply) { EXPECT_EQ(reply.code(), 0); });
        }
        if (i % 50 == 0) {
          EXPECT_OK(core_->AllStatuses());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(listener_->AwaitAnswers(absl::StatusCode::kOk, kThreads * kEach / 2));
  absl::Notification answered;
  v1::StoreReply sum;
  core_->CallStore(GetForTest("sum", kThreads * kEach + 1), [&](const v1::StoreReply& reply) {
    sum = reply;
    answered.Notify();
  });
  ASSERT_TRUE(answered.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(sum.value(), std::to_string(kThreads * kEach));
}

// A disk that takes as long as it is held.
class SlowLog final : public log::RecordLog {
 public:
  struct Disk {
    absl::Mutex mutex;
    bool held = false;
    bool waits = false;
    std::set<std::thread::id> used_by;
  };
  explicit SlowLog(std::shared_ptr<Disk> disk) : disk_(std::move(disk)) {}

  uint64_t server_id() const override { return 1; }
  absl::Status Append(const log::RecordRows&) override {
    const absl::MutexLock lock(&disk_->mutex);
    disk_->used_by.insert(std::this_thread::get_id());
    disk_->waits = disk_->held;
    const auto free = [&] { return !disk_->held; };
    EXPECT_TRUE(disk_->mutex.AwaitWithTimeout(absl::Condition(&free), kPatience));
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<Disk> disk_;
};

TEST_F(CoreThreadPosterTest, WhoPostsNeitherSavesNorWaitsForTheDisk) {
  const auto disk = std::make_shared<SlowLog::Disk>();
  log::OpenedLog slow;
  slow.log = std::make_unique<SlowLog>(disk);
  Start(std::move(slow));
  {
    const absl::MutexLock lock(&disk->mutex);
    disk->held = true;
  }
  ASSERT_OK(core_->Post(stream_, AskForTest(SetForTest("k", "v", 1))));
  ASSERT_OK(core_->Post(stream_, AskForTest(GetForTest("k", 2))));
  {
    const absl::MutexLock lock(&disk->mutex);
    ASSERT_TRUE(disk->mutex.AwaitWithTimeout(absl::Condition(&disk->waits), kPatience));
  }
  // Neither the set is answered before it is saved, nor what follows from it.
  EXPECT_EQ(listener_->answers(), 0);
  {
    const absl::MutexLock lock(&disk->mutex);
    disk->held = false;
    EXPECT_EQ(disk->used_by.count(std::this_thread::get_id()), 0u);
  }
  EXPECT_TRUE(listener_->AwaitAnswers(absl::StatusCode::kOk, 2));
}

}  // namespace
}  // namespace cadre::host
