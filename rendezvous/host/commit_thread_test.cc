#include "rendezvous/host/commit_thread.h"

#include <pthread.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"

namespace cadre::host {
namespace {

// Saves when it is allowed to.
class SlowLog final : public log::RecordLog {
 public:
  uint64_t server_id() const override { return 1; }
  absl::Status Append(const log::RecordRows& records) override {
    entered.Notify();
    allowed.WaitForNotification();
    appended += records.size();
    return outcome;
  }
  absl::Status Compact(log::Shortener&, const std::atomic<bool>& stop) override {
    compacting.Notify();
    while (!stop && !may_end_compaction.HasBeenNotified()) std::this_thread::yield();
    return stop ? absl::CancelledError("stopped") : absl::OkStatus();
  }

  absl::Notification compacting, may_end_compaction;
  absl::Notification entered, allowed;
  absl::Status outcome;
  size_t appended = 0;
};

log::RecordRows Records(const std::string& job) {
  v1::Record record;
  record.set_job(job);
  return {record};
}

TEST(CommitThreadTest, ItSavesWhileItsUserDoesSomethingElse) {
  SlowLog log;
  CommitThread thread;
  EXPECT_FALSE(thread.Take(false).has_value());
  thread.Begin(log, Records("a"));
  log.entered.WaitForNotification();
  EXPECT_FALSE(thread.Take(false).has_value());
  log.allowed.Notify();
  const auto outcome = thread.Take(true);
  ASSERT_TRUE(outcome.has_value());
  EXPECT_OK(outcome->status);
  EXPECT_EQ(log.appended, 1u);
  EXPECT_FALSE(thread.Take(false).has_value()) << "it was taken";
}

TEST(CommitThreadTest, WhatCouldNotBeSavedIsGivenBackAndTheNextBatchIsTried) {
  SlowLog log;
  log.allowed.Notify();
  log.outcome = absl::ResourceExhaustedError("no room");
  CommitThread thread;
  thread.Begin(log, Records("a"));
  const auto refused = thread.Take(true);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->status, log.outcome);
  ASSERT_EQ(refused->records.size(), 1u);
  EXPECT_EQ(refused->records.Decoded()[0].job(), "a");
  SlowLog roomy;
  roomy.allowed.Notify();
  thread.Begin(roomy, Records("b"));
  EXPECT_OK(thread.Take(true)->status);
}

TEST(CommitThreadTest, WithoutAThreadItSavesAtOnce) {
  pthread_attr_t before, huge;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  // A stack for which there is no address space, so that no thread can be started.
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 50), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  SlowLog log, other;
  log.allowed.Notify();
  CommitThread thread;
  thread.Begin(log, Records("a"));
  EXPECT_EQ(pthread_setattr_default_np(&before), 0);
  EXPECT_EQ(log.appended, 1u);
  const auto outcome = thread.Take(false);
  ASSERT_TRUE(outcome.has_value());
  EXPECT_OK(outcome->status);
  // When there is one again it is used.
  other.allowed.Notify();
  thread.Begin(other, Records("b"));
  EXPECT_OK(thread.Take(true)->status);
  pthread_attr_destroy(&huge);
  pthread_attr_destroy(&before);
}

TEST(CommitThreadTest, BatchesAreSavedWhileTheLogIsMadeShorter) {
  SlowLog log;
  log.allowed.Notify();
  CommitThread thread;
  thread.BeginCompaction(log, nullptr);
  log.compacting.WaitForNotification();
  EXPECT_FALSE(thread.TakeCompacted().has_value());
  thread.Begin(log, Records("a"));
  EXPECT_OK(thread.Take(true)->status);
  EXPECT_EQ(log.appended, 1u);
  log.may_end_compaction.Notify();
  std::optional<absl::Status> compacted;
  while (!compacted.has_value()) compacted = thread.TakeCompacted();
  EXPECT_OK(*compacted);
}

TEST(CommitThreadTest, ItsEndGivesUpACompaction) {
  SlowLog log;
  CommitThread thread;
  thread.BeginCompaction(log, nullptr);
  log.compacting.WaitForNotification();
}

TEST(CommitThreadTest, ItEndsAfterTheBatchThatItHas) {
  SlowLog log;
  {
    CommitThread thread;
    thread.Begin(log, Records("a"));
    log.allowed.Notify();
  }
  EXPECT_EQ(log.appended, 1u);
}

}  // namespace
}  // namespace cadre::host
