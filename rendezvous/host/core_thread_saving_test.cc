// How the core thread saves: beside its work, before anything is said, in order.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"
#include "rendezvous/host/commit_queue.h"
#include "rendezvous/host/core_thread.h"
#include "rendezvous/host/deaf_sink_for_test.h"
#include "rendezvous/host/join_for_test.h"

namespace cadre::host {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

// A disk that stands still until it is let go, and what it was given.
class StandingLog final : public log::RecordLog {
 public:
  struct Disk {
    absl::Mutex mutex;
    bool stands = false;
    absl::Status outcome;
    std::vector<size_t> tried;  // records of each Append
    std::vector<std::string> keys;
  };
  explicit StandingLog(std::shared_ptr<Disk> disk) : disk_(std::move(disk)) {}

  uint64_t server_id() const override { return 1; }
  absl::Status Append(const log::RecordRows& records) override {
    const absl::MutexLock lock(&disk_->mutex);
    disk_->tried.push_back(records.size());
    const auto moves = [this] { return !disk_->stands; };
    EXPECT_TRUE(disk_->mutex.AwaitWithTimeout(absl::Condition(&moves), kPatience));
    if (!disk_->outcome.ok()) return disk_->outcome;
    for (const v1::Record& record : records.Decoded()) {
      if (record.has_key_written()) disk_->keys.push_back(record.key_written().key());
    }
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<Disk> disk_;
};

class CoreThreadSavingTest : public ::testing::Test {
 protected:
  // More than are handled before the thread has them saved beside its work, and fewer than twice.
  static constexpr int kSets = kEventsPerCommit + 200;

  CoreThreadSavingTest() {
    log::OpenedLog standing;
    standing.log = std::make_unique<StandingLog>(disk_);
    core_ = std::make_unique<CoreThread>(NewCoreConfig(), nullptr, std::move(standing));
    const StreamId stream = core_->OpenStream(std::make_shared<DeafSink>());
    EXPECT_OK(core_->Post(stream, JoinForTest("node0", 1, 1)));
    // The generation has formed, and that is saved.
    EXPECT_EQ(core_->AllStatuses()->at(0).generation(), 1u);
    const absl::MutexLock lock(&disk_->mutex);
    disk_->stands = true;
    disk_->tried.clear();
  }
  ~CoreThreadSavingTest() override { LetGo(absl::OkStatus()); }

  void CallAll() {
    // They come while the thread is busy, as one batch.
    absl::Notification entered, all_called, left;
    core_->AskAllStatuses([&](const absl::StatusOr<std::vector<v1::JobStatus>>&) {
      entered.Notify();
      all_called.WaitForNotification();
      left.Notify();
    });
    entered.WaitForNotification();
    for (int i = 0; i < kSets; ++i) {
      core_->CallStore(SetForTest(KeyOf(i), "v", i + 1), [this](const v1::StoreReply& reply) {
        const absl::MutexLock lock(&mutex_);
        replies_.push_back(reply);
      });
    }
    all_called.Notify();
    left.WaitForNotification();
  }
  static std::string KeyOf(int i) { return "k" + std::to_string(i); }
  void AwaitTried(size_t times) {
    const absl::MutexLock lock(&disk_->mutex);
    const auto tried = [&] { return disk_->tried.size() >= times; };
    EXPECT_TRUE(disk_->mutex.AwaitWithTimeout(absl::Condition(&tried), kPatience));
  }
  void LetGo(const absl::Status& outcome) {
    const absl::MutexLock lock(&disk_->mutex);
    disk_->outcome = outcome;
    disk_->stands = false;
  }
  void AwaitReplies() {
    const absl::MutexLock lock(&mutex_);
    const auto all = [&] { return replies_.size() >= kSets; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&all), kPatience));
  }

  const std::shared_ptr<StandingLog::Disk> disk_ = std::make_shared<StandingLog::Disk>();
  absl::Mutex mutex_;
  std::vector<v1::StoreReply> replies_;
  std::unique_ptr<CoreThread> core_;
};

TEST_F(CoreThreadSavingTest, NothingIsAnsweredBeforeItIsSavedAndAllInOrder) {
  CallAll();
  AwaitTried(1);
  {
    const absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(replies_.empty());
  }
  LetGo(absl::OkStatus());
  AwaitReplies();
  {
    const absl::MutexLock lock(&mutex_);
    ASSERT_EQ(replies_.size(), static_cast<size_t>(kSets));
    for (int i = 0; i < kSets; ++i) {
      EXPECT_EQ(replies_[i].request_id(), static_cast<uint64_t>(i + 1));
      EXPECT_EQ(replies_[i].code(), 0);
    }
  }
  const absl::MutexLock lock(&disk_->mutex);
  ASSERT_EQ(disk_->tried.size(), 2u);
  ASSERT_EQ(disk_->keys.size(), static_cast<size_t>(kSets));
  for (int i = 0; i < kSets; ++i) EXPECT_EQ(disk_->keys[i], KeyOf(i));
}

TEST_F(CoreThreadSavingTest, WhenABatchCannotBeSavedCallersOfTheNextAreToldToo) {
  CallAll();
  AwaitTried(1);
  LetGo(absl::ResourceExhaustedError("no room"));
  AwaitReplies();
  {
    const absl::MutexLock lock(&mutex_);
    for (const v1::StoreReply& reply : replies_) {
      EXPECT_NE(reply.code(), 0) << "request " << reply.request_id();
    }
  }
  // Both batches are saved in order as soon as there is room.
  LetGo(absl::OkStatus());
  const auto saved = [&] { return disk_->keys.size() >= kSets; };
  const absl::MutexLock lock(&disk_->mutex);
  EXPECT_TRUE(disk_->mutex.AwaitWithTimeout(absl::Condition(&saved), kPatience));
  for (int i = 0; i < kSets; ++i) EXPECT_EQ(disk_->keys[i], KeyOf(i));
}

TEST_F(CoreThreadSavingTest, WhatItHasIsSavedBeforeItEnds) {
  CallAll();
  AwaitTried(1);
  LetGo(absl::OkStatus());
  core_ = nullptr;
  AwaitReplies();
  const absl::MutexLock lock(&disk_->mutex);
  EXPECT_EQ(disk_->keys.size(), static_cast<size_t>(kSets));
}

}  // namespace
}  // namespace cadre::host
