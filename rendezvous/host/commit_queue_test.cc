#include "rendezvous/host/commit_queue.h"

#include <pthread.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre::host {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Records in order which records were saved and which effects were sent.
class CommitQueueTest : public testing::Test {
 protected:
  class Log final : public log::RecordLog {
   public:
    explicit Log(CommitQueueTest& test) : test_(test) {}
    uint64_t server_id() const override { return 1; }
    bool has_one_owner() const override { return test_.has_one_owner_; }
    absl::Status Append(const log::RecordRows& records) override {
      if (!test_.disk_.ok()) return test_.disk_;
      for (const v1::Record& record : records.Decoded()) {
        test_.happened_.push_back(absl::StrCat("saved ", record.job()));
      }
      return absl::OkStatus();
    }

   private:
    CommitQueueTest& test_;
  };

  // Has saved once `beside_is_done_` is set or a caller waits.
  class Beside final : public BatchSaver {
   public:
    explicit Beside(CommitQueueTest& test) : test_(test) {}
    void Begin(log::RecordLog& log, log::RecordRows records) override {
      EXPECT_EQ(log_, nullptr) << "something is being saved";
      log_ = &log;
      records_ = std::move(records);
      for (const v1::Record& record : records_.Decoded()) {
        test_.happened_.push_back(absl::StrCat("began ", record.job()));
      }
    }
    std::optional<Outcome> Take(bool wait) override {
      if (!wait && !test_.beside_is_done_) return std::nullopt;
      Outcome outcome;
      outcome.status = std::exchange(log_, nullptr)->Append(records_);
      if (!outcome.status.ok()) outcome.records = std::move(records_);
      return outcome;
    }

   private:
    CommitQueueTest& test_;
    log::RecordLog* log_ = nullptr;
    log::RecordRows records_;
  };

  CommitQueueTest()
      : queue_(std::make_unique<Log>(*this), std::make_unique<Beside>(*this), HostOf()) {}

  CommitQueue::Host HostOf() {
    CommitQueue::Host host;
    host.deliver = [this](const Effects& effects) {
      ++delivered_;
      for (const SendToStream& send : effects.send) {
        happened_.push_back(absl::StrCat("sent ", send.message.job()));
      }
      for (const ReplyToCall& reply : effects.reply) {
        happened_.push_back(absl::StrCat("answered ", reply.reply.code()));
      }
      for (const CloseStream& close : effects.close) {
        happened_.push_back(absl::StrCat("closed ", close.stream.value));
      }
    };
    host.log_line = [](const std::string&) {};
    host.saved = [](absl::Duration) {};
    return host;
  }
  static Effects Saying(const std::string& job) {
    Effects effects;
    effects.send.emplace_back().message.set_job(job);
    return effects;
  }
  static Effects Renewing(const std::string& job) {
    Effects effects = Saying(job);
    effects.send.back().message.mutable_renewed()->set_number(1);
    return effects;
  }
  static Effects SavingAndSaying(const std::string& job) {
    Effects effects = Saying(job);
    effects.append.emplace_back().set_job(job);
    return effects;
  }

  MonoTime now_ = MonoTime::FromMicros(1000000);
  absl::Status disk_;
  bool has_one_owner_ = true;
  bool beside_is_done_ = false;
  std::vector<std::string> happened_;
  int delivered_ = 0;
  CommitQueue queue_;
};

TEST_F(CommitQueueTest, WhatFollowsIsSaidAfterItIsSaved) {
  queue_.Add(now_, SavingAndSaying("a"));
  queue_.Add(now_, Saying("b"));
  EXPECT_THAT(happened_, IsEmpty());
  queue_.Commit(now_);
  EXPECT_THAT(happened_, ElementsAre("saved a", "sent a", "sent b"));
  queue_.Add(now_, Saying("c"));
  EXPECT_EQ(happened_.back(), "sent c");
}

TEST_F(CommitQueueTest, WhatCannotBeSavedIsHeldAndTriedAgain) {
  disk_ = absl::ResourceExhaustedError("no room");
  queue_.Add(now_, SavingAndSaying("a"));
  queue_.Commit(now_);
  EXPECT_EQ(queue_.save_error(), disk_);
  disk_ = absl::OkStatus();
  queue_.Commit(now_);
  EXPECT_THAT(happened_, IsEmpty()) << "too soon";
  queue_.Commit(queue_.NextDeadline());
  EXPECT_OK(queue_.save_error());
  EXPECT_THAT(happened_, ElementsAre("saved a", "sent a"));
}

TEST_F(CommitQueueTest, ARenewedLeaseIsSaidThoughNothingCanBeSaved) {
  disk_ = absl::ResourceExhaustedError("no room");
  queue_.Add(now_, SavingAndSaying("a"));
  queue_.Add(now_, Renewing("b"));
  EXPECT_THAT(happened_, IsEmpty()) << "in its turn, as long as all goes well";
  queue_.Commit(now_);
  Effects effects = Saying("c");
  effects.send.push_back(Renewing("d").send[0]);
  queue_.Add(now_, std::move(effects));
  EXPECT_THAT(happened_, ElementsAre("sent d"));
  disk_ = absl::OkStatus();
  queue_.Commit(queue_.NextDeadline());
  EXPECT_THAT(happened_, ElementsAre("sent d", "saved a", "sent a", "sent b", "sent c"));
}

TEST_F(CommitQueueTest, ARenewedLeaseIsNotSaidWhereAnotherServerMayHaveEndedIt) {
  has_one_owner_ = false;
  disk_ = absl::UnavailableError("etcd is away");
  queue_.Add(now_, SavingAndSaying("a"));
  queue_.Commit(now_);
  queue_.Add(now_, Renewing("b"));
  disk_ = absl::OkStatus();
  queue_.Commit(queue_.NextDeadline());
  EXPECT_THAT(happened_, ElementsAre("saved a", "sent a"));
}

TEST_F(CommitQueueTest, ACallerThatCanAskAgainIsToldSoAtOnce) {
  disk_ = absl::ResourceExhaustedError("no room");
  Effects effects = SavingAndSaying("a");
  effects.reply.emplace_back();
  queue_.Add(now_, std::move(effects));
  queue_.Commit(now_);
  EXPECT_THAT(happened_, ElementsAre(absl::StrCat(
                             "answered ", static_cast<int>(absl::StatusCode::kUnavailable))));
}

TEST_F(CommitQueueTest, EmptyEffectsAreNotHeld) {
  disk_ = absl::ResourceExhaustedError("no room");
  queue_.Add(now_, SavingAndSaying("a"));
  queue_.Commit(now_);
  for (int renewal = 0; renewal < 100; ++renewal) queue_.Add(now_, Effects());
  disk_ = absl::OkStatus();
  queue_.Commit(queue_.NextDeadline());
  EXPECT_EQ(delivered_, 1);
}

TEST_F(CommitQueueTest, WhatFollowsIsSaidAfterItIsSavedBeside) {
  queue_.Add(now_, SavingAndSaying("a"));
  queue_.CommitInBackground(now_);
  queue_.Add(now_, Saying("b"));
  queue_.CommitInBackground(now_);
  EXPECT_THAT(happened_, ElementsAre("began a"));
  EXPECT_TRUE(queue_.WantsCommit());
  beside_is_done_ = true;
  queue_.CommitInBackground(now_);
  EXPECT_THAT(happened_, ElementsAre("began a", "saved a", "sent a", "sent b"));
  EXPECT_FALSE(queue_.WantsCommit());
}

TEST_F(CommitQueueTest, OneBatchIsSavedAtATime) {
  queue_.Add(now_, SavingAndSaying("a"));
  queue_.CommitInBackground(now_);
  queue_.Add(now_, SavingAndSaying("b"));
  queue_.CommitInBackground(now_);
  EXPECT_THAT(happened_, ElementsAre("began a"));
  queue_.Commit(now_);
  EXPECT_THAT(happened_, ElementsAre("began a", "saved a", "sent a", "saved b", "sent b"));
}

TEST_F(CommitQueueTest, WhatIsHeldMeanwhileIsBounded) {
  queue_.Add(now_, SavingAndSaying("a"));
  queue_.CommitInBackground(now_);
  for (size_t i = 1; i < kEventsPerCommit; ++i) {
    queue_.Add(now_, SavingAndSaying("b"));
    queue_.CommitInBackground(now_);
  }
  EXPECT_THAT(happened_, ElementsAre("began a"));
  queue_.Add(now_, SavingAndSaying("b"));
  queue_.CommitInBackground(now_);
  // It waited for the first batch, and began the next.
  ASSERT_EQ(happened_.size(), 3 + kEventsPerCommit);
  EXPECT_EQ(happened_[2], "sent a");
  EXPECT_EQ(happened_[3], "began b");
}

TEST_F(CommitQueueTest, WhoWaitsForWhatIsBeingSavedLeavesTheRestHeld) {
  queue_.Add(now_, SavingAndSaying("a"));
  queue_.CommitInBackground(now_);
  queue_.Add(now_, SavingAndSaying("b"));
  queue_.AwaitSaved(now_);
  EXPECT_FALSE(queue_.is_saving());
  EXPECT_THAT(happened_, ElementsAre("began a", "saved a", "sent a"));
}

// Fault (state): A batch cannot be saved, and the next one has already been processed -> No effect
// of either is sent, and both are saved in order when there is room
TEST_F(CommitQueueTest, WhenABatchCannotBeSavedTheNextIsHeldBehindIt) {
  disk_ = absl::ResourceExhaustedError("no room");
  for (const char* job : {"a", "b"}) {
    Effects effects = SavingAndSaying(job);
    effects.reply.emplace_back();
    queue_.Add(now_, std::move(effects));
    queue_.CommitInBackground(now_);
  }
  EXPECT_THAT(happened_, ElementsAre("began a"));
  beside_is_done_ = true;
  queue_.CommitInBackground(now_);
  EXPECT_EQ(queue_.save_error(), disk_);
  // Callers of both get an error that tells them to retry.
  const std::string refused =
      absl::StrCat("answered ", static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_THAT(happened_, ElementsAre("began a", refused, refused));
  happened_.clear();
  disk_ = absl::OkStatus();
  queue_.CommitInBackground(now_);
  EXPECT_THAT(happened_, IsEmpty()) << "too soon";
  queue_.CommitInBackground(queue_.NextDeadline());
  EXPECT_THAT(happened_, ElementsAre("saved a", "saved b", "sent a", "sent b"));
  EXPECT_OK(queue_.save_error());
}

TEST_F(CommitQueueTest, NothingGoesOutOfABatchThatIsSavedBesideOnceTheStateIsAnotherServers) {
  disk_ = absl::AbortedError("another server leads");
  queue_.Add(now_, SavingAndSaying("a"));
  queue_.CommitInBackground(now_);
  queue_.Add(now_, SavingAndSaying("b"));
  queue_.Commit(now_);
  disk_ = absl::OkStatus();
  queue_.Commit(now_ + absl::Hours(1));
  EXPECT_THAT(happened_, ElementsAre("began a"));
}

TEST_F(CommitQueueTest, AStreamIsClosedBetweenWhatIsSaidBeforeAndAfter) {
  Effects closing = SavingAndSaying("b");
  closing.close.push_back({StreamId{7}, absl::OkStatus()});
  queue_.Add(now_, SavingAndSaying("a"));
  queue_.Add(now_, std::move(closing));
  queue_.Add(now_, Saying("c"));
  queue_.Commit(now_);
  EXPECT_THAT(happened_,
              ElementsAre("saved a", "saved b", "sent a", "sent b", "closed 7", "sent c"));
}

TEST_F(CommitQueueTest, NothingGoesOutOnceTheStateIsAnotherServers) {
  disk_ = absl::AbortedError("another server leads");
  queue_.Add(now_, SavingAndSaying("a"));
  queue_.Commit(now_);
  EXPECT_EQ(queue_.NextDeadline(), MonoTime::Never());
  disk_ = absl::OkStatus();
  queue_.Commit(now_ + absl::Hours(1));
  EXPECT_THAT(happened_, IsEmpty());
}

// Saves once the test allows it.
class SlowLog final : public log::RecordLog {
 public:
  uint64_t server_id() const override { return 1; }
  absl::Status Append(const log::RecordRows& records) override {
    entered.Notify();
    allowed.WaitForNotification();
    appended += records.size();
    return outcome;
  }
  absl::Status Compact(log::Compactor&, const std::atomic<bool>& stop) override {
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
  // Once a thread can be created, it is used.
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
