#include "rendezvous/service/commit_queue.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// What happened, in order: records that were saved and what went out.
class CommitQueueTest : public testing::Test {
 protected:
  class Log final : public RecordLog {
   public:
    explicit Log(CommitQueueTest& test) : test_(test) {}
    uint64_t server_id() const override { return 1; }
    absl::Status Append(const std::vector<v1::Record>& records) override {
      if (!test_.disk_.ok()) return test_.disk_;
      for (const v1::Record& record : records) {
        test_.happened_.push_back(absl::StrCat("saved ", record.job()));
      }
      return absl::OkStatus();
    }
    bool WantsCompaction() const override { return false; }
    absl::Status Compact(const std::vector<v1::Record>&) override { return absl::OkStatus(); }

   private:
    CommitQueueTest& test_;
  };

  CommitQueueTest() : queue_(std::make_unique<Log>(*this), HostOf()) {}

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
    };
    host.snapshot = [] { return std::vector<v1::Record>(); };
    host.say = [](const std::string&) {};
    host.saved = [](absl::Duration) {};
    return host;
  }
  static Effects Saying(const std::string& job) {
    Effects effects;
    effects.send.emplace_back().message.set_job(job);
    return effects;
  }
  static Effects SavingAndSaying(const std::string& job) {
    Effects effects = Saying(job);
    effects.append.emplace_back().set_job(job);
    return effects;
  }

  MonoTime now_ = MonoTime::FromMicros(1000000);
  absl::Status disk_;
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
  EXPECT_EQ(queue_.trouble(), disk_);
  disk_ = absl::OkStatus();
  queue_.Commit(now_);
  EXPECT_THAT(happened_, IsEmpty()) << "too soon";
  queue_.Commit(queue_.NextDeadline());
  EXPECT_OK(queue_.trouble());
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

TEST_F(CommitQueueTest, NothingGoesOutOnceTheStateIsAnotherServers) {
  disk_ = absl::AbortedError("another server leads");
  queue_.Add(now_, SavingAndSaying("a"));
  queue_.Commit(now_);
  EXPECT_EQ(queue_.NextDeadline(), MonoTime::Never());
  disk_ = absl::OkStatus();
  queue_.Commit(now_ + absl::Hours(1));
  EXPECT_THAT(happened_, IsEmpty());
}

}  // namespace
}  // namespace cadre
